"""Simulated devices: stages sleep as long as a real one would take, and use no CPU.

Everything else of a stage (its files, log, leases and processes) is the same as for a real device. A stage takes the
time that `autotune simulate` would draw for it. A candidate has the same times whenever it is measured.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.device_settings import DeviceSettings
from autotune.errors import WorkerError
from autotune.planning.scenario import Duration, chance
from autotune.stages.bench import Bench, OpenDevice
from autotune.storage.confirmation import EntryTimes
from autotune.storage.formats import Candidate, Kind, Trial
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.verify import Reference

# The best time of a task falls from its first value towards this share of it, half of the way after 32 trials.
_FLOOR = 0.3
_HALF_AFTER = 32
_REPEATS = 3
_NOISE = 0.005
_WHOLE = 1.25
_LIBRARY_BYTES = 4096


class SimulatedBench(Bench):
    """A device that does not exist. TVM is not loaded for it, and there is nothing to check, to guard or to verify."""

    suspect = ()
    stays_open = True
    candidates_can_kill = False

    @classmethod
    def load(cls, workspace: Workspace) -> None:
        """Load nothing."""

    def check_job(self) -> None:
        """Pass: it is simulated alike everywhere."""

    @property
    def fitness_key(self) -> str:
        return ""

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        """Pass: no machine is at fault for what is drawn."""

    def check_program(self) -> None:
        """Pass: its tasks have no programs."""

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        return None

    def propose(
        self, pending: Sequence[Candidate], excluded: Collection[str]
    ) -> tuple[list[Candidate], dict[str, int]]:
        """Return the first candidates of the task's endless sequence that are not known."""
        _sleep(self.seconds("search"))
        taken = {candidate.hash for candidate in pending}.union(excluded)
        proposed: list[Candidate] = []
        number = 0
        while len(proposed) < self.stage.count:
            of_this = f"{self.stage.spec.seed}/{self.stage.task.hash}/{number}"
            hash = hashlib.sha256(of_this.encode()).hexdigest()[:16]
            if hash not in taken:
                proposed.append(Candidate(hash, {"simulated": number}, []))
            number += 1
        return proposed, {}

    def builder(self) -> Callable[[Candidate], str]:
        """Return a function that writes a small file for a candidate."""
        steps = _Steps(self.seconds("build") / self.stage.spec.trials_per_round)

        def build(candidate: Candidate) -> str:
            steps.take()
            _fail(self.recorded(candidate), "build")
            name = f"{candidate.hash}.so"
            content = candidate.hash.encode() * (_LIBRARY_BYTES // len(candidate.hash))
            (self.stage.artifacts / name).write_bytes(content)
            return name

        return build

    def open(self, truth: Reference | None) -> OpenDevice:
        _open_once(self.settings.open_s)
        return _OpenSimulated(self)

    def compile_model(self, library: Path) -> None:
        _sleep(self.seconds("compile"))
        library.write_bytes(b"a library")

    def time_model(self, library: Path, tasks_ms: Sequence[float], processes: int, reference: bool) -> list[EntryTimes]:
        """Return the times of a model that takes a quarter more than its tasks. Only `--stop-at` asks for them."""
        _sleep(self.seconds("confirm"))
        factors = [_WHOLE + _NOISE * process for process in range(processes)]
        pairs = zip(self.stage.spec.all_entries, tasks_ms, strict=True)
        return [EntryTimes(entry.name, tuple(sum_ms * factor for factor in factors), sum_ms) for entry, sum_ms in pairs]

    def learn(self) -> int:
        _sleep(self.seconds("train"))
        return sum(len(self.stage.log(task).entries()) for task in self.stage.spec.tunable)

    @property
    def settings(self) -> DeviceSettings:
        """The settings of the device: of the first one for a stage that does not measure.

        What the job's target says takes precedence over them.
        """
        devices = self.stage.config.devices
        named = devices.get(self.stage.device.partition(":")[2])
        device = named or next(iter(devices.values()), DeviceSettings())
        return replace(device, **{key: value for key, value in self.stage.spec.target.items() if key != "kind"})

    def seconds(self, kind: Kind) -> float:
        """Return how long a stage of a kind takes with a full batch, in seconds."""
        device = self.settings
        mean: dict[Kind, float] = {
            "search": device.search_s,
            "build": device.build_s,
            "measure": device.measure_s,
            "train": device.train_s,
            "compile": device.build_s,
            "confirm": device.measure_s,
        }
        spec = self.stage.spec
        position = chance(spec.seed, spec.id, self.stage.file.task, self.stage.file.round, kind)
        return Duration(mean[kind], device.spread).draw(position) / device.speed

    def recorded(self, candidate: Candidate) -> Trial | None:
        """Return the recorded trial that stands for a candidate. Trials repeat where there are too few of them."""
        trials = self.settings.trials
        if not trials:
            return None
        log = TuningLog(self.stage.workspace.root / trials)
        entries = log.entries()
        return next(iter(log.trials_of([entries[_number(candidate) % len(entries)]])), None) if entries else None

    def draw_times(self, candidate: Candidate) -> list[float]:
        """Draw times around a curve that falls with the trials. Most candidates are slower than it, some by far."""
        digits = hashlib.sha256(candidate.hash.encode()).digest()
        words = (digits[start : start + 4] for start in range(0, 4 + 4 * _REPEATS, 4))
        slower, *noise = (int.from_bytes(word, "big") / 2**32 for word in words)
        share = _FLOOR + (1 - _FLOOR) * _HALF_AFTER / (_HALF_AFTER + _number(candidate))
        middle = self._first_us * share * (1 - 0.5 * math.log(1 - slower))
        return [middle * (1 + _NOISE * (value - 0.5)) for value in noise]

    @property
    def _first_us(self) -> float:
        """The time of the task's first candidate: between 100 and 1100 microseconds."""
        return 100 + int(hashlib.sha256(self.stage.task.hash.encode()).hexdigest()[:8], 16) % 1000


@cache
def _open_once(seconds: float) -> None:
    """Take as long as it takes to open the device in a process."""
    _sleep(seconds)


class _OpenSimulated:
    """A simulated device that a process has opened."""

    def __init__(self, bench: SimulatedBench) -> None:
        self._bench = bench
        self._steps = _Steps(bench.seconds("measure") / bench.stage.spec.trials_per_round)

    def time(self, candidate: Candidate, best_us: float | None) -> list[float]:
        """Return the times of the device's log of trials, or draw some."""
        self._steps.take()
        trial = self._bench.recorded(candidate)
        if trial is None:
            return self._bench.draw_times(candidate)
        _fail(trial, "measure")
        return list(trial.times_us)

    def verify(self, candidate: Candidate) -> float:
        """Compare nothing."""
        return 0.0


class _Steps:
    """Spreads a stage's time evenly over its candidates, however long the work between them takes."""

    def __init__(self, seconds: float) -> None:
        self._step = seconds
        self._until = time.monotonic()

    def take(self) -> None:
        """Sleep until the next candidate is due."""
        self._until += self._step
        _sleep(self._until - time.monotonic())


def _sleep(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def _fail(trial: Trial | None, kind: Kind) -> None:
    """Fail as the recorded trial did, if it did so in this stage.

    Raises:
        WorkerError: The trial failed.
    """
    if trial is not None and trial.failure is not None and trial.failure.stage == kind:
        raise WorkerError(trial.failure.reason)


def _number(candidate: Candidate) -> int:
    return int(candidate.trace["simulated"])
