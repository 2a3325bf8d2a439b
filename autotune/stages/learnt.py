"""Which trials of a long tuning log a search and a training look at: all of a short one, else the best and a sample.

The schedules of a hundred thousand trials take minutes to read and gigabytes to hold. The best ones say where to search
on; the others, spread evenly over the log, say what is slow.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.storage.formats import Trial
from autotune.storage.trial_index import Entry, by_time
from autotune.storage.tuning_log import TuningLog

# Up to so many trials of a task are all used; of more, half as many of the best, and as many of the others.
MOST = 1536


def trials_to_learn_from(log: TuningLog, most: int = MOST) -> list[Trial]:
    """Return trials of a log with their schedules, oldest first: all of them, or about `most`.

    Raises:
        StorageError: The log cannot be read.
    """
    entries = log.entries()
    return log.trials() if len(entries) <= most else log.trials_of(chosen(entries, most))


def chosen(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Return the half of `most` that is fastest, and as many of the others, evenly spread; in their order."""
    best = {entry.hash for entry in by_time(entries)[: most // 2]}
    others = [entry for entry in entries if entry.hash not in best]
    wanted = min(len(others), most - len(best))
    spread = {others[number * len(others) // wanted].hash for number in range(wanted)}
    return [entry for entry in entries if entry.hash in best or entry.hash in spread]
