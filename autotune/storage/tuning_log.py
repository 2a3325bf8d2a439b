"""The tuning log: the append-only file of trials of one task on one kind of device.

It is the truth that everything resumes from. Two jobs that share a task share its log.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.errors import InvalidData
from autotune.storage.atomic import make_folders
from autotune.storage.formats import Trial, from_json, to_json
from autotune.storage.record_log import START, RecordLog

FORMAT = ("autotune-trials", 1)


class TuningLog:
    """Trials on disk. Guarantee: what `add` returned from is durable, and no candidate is in the log twice.

    An instance reads only what is new since it last looked, so keep one for as long as a log is followed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RecordLog(path, *FORMAT)
        self._place = START
        self._trials: dict[str, Trial] = {}

    def trials(self) -> list[Trial]:
        """All trials, oldest first; none where there is no log yet. Never blocks, never raises for damage."""
        tail = self._log.read_from(self._place)
        if tail.restarted:
            self._trials.clear()
        self._place = tail.place
        for trial in filter(None, map(_trial, tail.records)):
            self._trials.setdefault(trial.hash, trial)
        return list(self._trials.values())

    def add(self, trials: Iterable[Trial]) -> list[Trial]:
        """Append those trials whose candidate is not in the log yet; returns the ones appended.

        Raises:
            DiskProblem: nothing was appended.
        """
        make_folders(self.path.parent)
        with self._log.transaction() as transaction:
            self.trials()
            new: dict[str, Trial] = {}
            for trial in trials:
                if trial.hash not in self._trials:
                    new.setdefault(trial.hash, trial)
            if new:
                transaction.append([to_json(trial) for trial in new.values()])
        return list(new.values())


def _trial(record: dict[str, object]) -> Trial | None:
    try:
        return from_json(Trial, record)
    except InvalidData:
        return None
