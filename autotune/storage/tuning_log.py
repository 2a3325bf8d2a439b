"""The tuning log: an append-only file with the trials of one task on one kind of device.

All progress is derived from these logs. Two jobs that share a task share its log.
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
    """Trials on disk. They are durable once `add` has returned, and no candidate is in the log twice.

    An instance reads only what was appended since its last read. Keep it as long as you follow the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RecordLog(path, *FORMAT)
        self._position = START
        self._trials: dict[str, Trial] = {}

    def trials(self) -> list[Trial]:
        """Return all trials, oldest first. Damaged lines are skipped.

        Returns:
            The trials; none if there is no log yet.

        Raises:
            StorageError: The log cannot be read, is of another format, or was written by a newer autotune.
        """
        new = self._log.read_from(self._position)
        if new.restarted:
            self._trials.clear()
        self._position = new.position
        for trial in filter(None, map(_trial, new.records)):
            self._trials.setdefault(trial.hash, trial)
        return list(self._trials.values())

    def add(self, trials: Iterable[Trial]) -> list[Trial]:
        """Append the trials whose candidates are not in the log yet.

        Returns:
            The trials that were appended.

        Raises:
            DiskProblem: Nothing was appended.
        """
        make_folders(self.path.parent)
        with self._log.transaction() as transaction:
            self.trials()
            missing: dict[str, Trial] = {}
            for trial in trials:
                if trial.hash not in self._trials:
                    missing.setdefault(trial.hash, trial)
            if missing:
                transaction.append([to_json(trial) for trial in missing.values()])
        return list(missing.values())


def _trial(record: dict[str, object]) -> Trial | None:
    try:
        return from_json(Trial, record)
    except InvalidData:
        return None
