"""What the last confirmation of a job found: how long the whole model takes, beside its tasks and its reference."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import DamagedFile
from autotune.storage import formats
from autotune.storage.atomic import remove
from autotune.storage.paths import JobPaths


@dataclass(frozen=True)
class EntryTimes:
    """How long the whole model took at one set of shapes, in milliseconds.

    Attributes:
        times_ms: The time of a run in each of some processes.
        tasks_ms: The sum of the best times of the tasks then, each by its weight.
        reference: The runtime of the model as submitted, such as `onnxruntime`; empty if it was not timed.
        reference_ms: The time of a run in it; None if that was not timed.
    """

    name: str
    times_ms: tuple[float, ...]
    tasks_ms: float
    reference: str = ""
    reference_ms: float | None = None

    @property
    def outside_ms(self) -> float:
        """What a run takes besides its tasks: kernels that have no trials, and calls.

        It is below zero where the tasks take longer alone than in the model.
        """
        return statistics.median(self.times_ms) - self.tasks_ms


@dataclass(frozen=True)
class Confirmation:
    """What the last confirmation of a job found.

    Attributes:
        times_ms: How long a run of the whole model took, in each of some processes.
        estimate_ms: The sum of the best times of the tasks then, each by its weight. Of several sets of shapes the
            slowest counts, here and above.
        at: When it ended.
        failed: Why the whole model could not be timed; it is not tried again. The rest is what was found before.
        took_s: How long the confirmation took, in seconds.
        entries: The times at each set of shapes; none if an older autotune wrote the file.
    """

    FORMAT = ("autotune-confirmation", 1)

    times_ms: tuple[float, ...]
    estimate_ms: float
    at: float
    failed: str = ""
    took_s: float = 0.0
    entries: tuple[EntryTimes, ...] = ()

    @classmethod
    def of(cls, entries: Sequence[EntryTimes], took_s: float) -> Confirmation:
        """Return what was found just now."""
        slowest = tuple(max(times) for times in zip(*(entry.times_ms for entry in entries), strict=True))
        estimate_ms = max(entry.tasks_ms for entry in entries)
        return cls(slowest, estimate_ms, time.time(), "", round(took_s, 3), tuple(entries))

    @property
    def latency_ms(self) -> float:
        """The median over the processes."""
        return statistics.median(self.times_ms)

    @property
    def slowest_ms(self) -> float:
        """The time of the slowest process."""
        return max(self.times_ms)

    @property
    def ratio(self) -> float:
        """How many times as long as the estimate the whole model took."""
        return self.latency_ms / self.estimate_ms

    def meets(self, stop_at_ms: float) -> bool:
        """Return whether every process was fast enough."""
        return not self.failed and self.slowest_ms <= stop_at_ms


def read_confirmation(paths: JobPaths) -> Confirmation | None:
    """Read what the last confirmation of a job found; None if there was none, or its file is damaged.

    Raises:
        StorageError: The file cannot be read, or a newer autotune wrote it.
    """
    try:
        last = formats.read(Confirmation, paths.confirmed)
    except (FileNotFoundError, DamagedFile):
        return None
    return last if last.failed or _is_sound(last) else None


def _is_sound(last: Confirmation) -> bool:
    numbers = [*last.times_ms, last.estimate_ms]
    for entry in last.entries:
        numbers += [*entry.times_ms, *([] if entry.reference_ms is None else [entry.reference_ms])]
    all_timed = bool(last.times_ms) and all(entry.times_ms for entry in last.entries)
    sums = [entry.tasks_ms for entry in last.entries]  # an entry may have no tasks
    return all_timed and all(0 < value < math.inf for value in numbers) and all(map(math.isfinite, sums))


def give_up(paths: JobPaths, diagnosis: str) -> Confirmation:
    """Write down that the whole model cannot be timed, so that it is not tried again.

    Raises:
        StorageError: The last confirmation could not be read, or the file could not be written.
    """
    last = read_confirmation(paths)
    failed = replace(last or Confirmation((), 0.0, 0.0), at=time.time(), failed=diagnosis)
    formats.write(paths.confirmed, failed)
    return failed


def forget_failure(paths: JobPaths) -> None:
    """Let a whole model be timed again that could not be timed.

    Raises:
        StorageError: The last confirmation could not be read or removed.
    """
    last = read_confirmation(paths)
    if last is not None and last.failed:
        remove(paths.confirmed)
