"""The tuning log: an append-only file with the trials of one task on one kind of device.

All progress is derived from these logs. A writer that was killed in the middle of a line leaves a torn tail, which the
next one repairs (`record_log.py`). Two jobs that share a task share its log. Beside a log is its index, from which
most is read: see `trial_index.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.errors import disk_problem
from autotune.regular_file import open_regular
from autotune.schema import sound
from autotune.storage import trial_index
from autotune.storage.atomic import make_folders
from autotune.storage.formats import Trial, to_json
from autotune.storage.log_lines import START, Position, decode_line
from autotune.storage.paths import TaskLogPaths
from autotune.storage.record_log import RecordLog, Seal, Transaction
from autotune.storage.trial_index import IndexEntry, by_time

FORMAT = ("autotune-trials", 1)
# Up to so many trials of a task are all used; of more, half as many of the best, and as many of the others.
MOST = 1536


class NewEntries(NamedTuple):
    """The entries of the trials since the last look, oldest first.

    `restarted` means that the log has changed before that: they are all there are, and replace the earlier ones.
    """

    entries: list[IndexEntry]
    restarted: bool


class TuningLog:
    """Trials on disk. They are durable once `add` has returned, and no candidate is in the log twice.

    An instance reads only what was appended since its last read. Keep it as long as you follow the log. It keeps the
    hashes of the trials, and what it was asked for: their entries, their schedules.
    """

    # A daemon follows thousands of logs.
    __slots__ = ("_decoded", "_entries", "_hashes", "_index", "_index_is_whole", "_log", "_position", "_trials", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RecordLog(path, *FORMAT)
        self._index = TaskLogPaths(path).index
        self._index_is_whole = False  # whether every row of the index is known to be as it was written
        self._position = START
        self._hashes: set[str] = set()
        self._entries: list[IndexEntry] | None = None  # None until somebody asks
        self._trials: dict[str, Trial] = {}
        self._decoded = 0  # the number of entries whose trials are in `_trials`, or could not be read

    def follow(self) -> NewEntries:
        """Return the entries that were added since the last call of any method.

        Raises:
            StorageError: The log cannot be read, is of another format, or was written by a newer autotune.
        """
        entries = self._from_index() if self._position == START else []
        position = entries[-1].position if entries else self._position
        lines, restarted = self._log.lines_from(position)
        if restarted:
            self._begin_again()
            return NewEntries(self.follow().entries, restarted=True)
        for line, position in lines:
            if (entry := trial_index.entry_of(line, position)) is not None:
                entries.append(entry)
        self._position = position  # only now: a read that fails is made again
        new = self._without_repeats(entries)
        if self._entries is not None:
            self._entries += new
        return NewEntries(new, restarted=False)

    def entries(self) -> list[IndexEntry]:
        """Return what planning needs of all trials, oldest first. That is much less work than `trials`.

        Raises:
            StorageError: As of `follow`.
        """
        return list(self._kept())

    def trials(self) -> list[Trial]:
        """Return all trials with their schedules, oldest first; none if there is no log. Damaged lines are skipped.

        Raises:
            StorageError: As of `follow`.
        """
        entries = self._kept()
        for trial in self.trials_of(entries[self._decoded :]):
            self._trials[trial.hash] = trial
        self._decoded = len(entries)
        return list(self._trials.values())

    def _kept(self) -> list[IndexEntry]:
        if self._entries is None:
            self._begin_again()
            self._entries = []
        self.follow()
        return self._entries

    def _begin_again(self) -> None:
        self._position = START
        self._hashes.clear()
        self._trials.clear()
        self._decoded = 0
        if self._entries is not None:
            self._entries = []

    def _without_repeats(self, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
        """Return the entries whose trials were not there before, and take note of them."""
        new = []
        for entry in entries:
            if entry.hash not in self._hashes:
                self._hashes.add(entry.hash)
                new.append(entry)
        return new

    def _from_index(self) -> list[IndexEntry]:
        """Return the entries of the index, if it fits the log."""
        self._index_is_whole = False
        index = trial_index.read(self._index)
        if index is None:
            return []
        entries, seal = index
        if not _fits(self._log, seal, entries[-1].position):
            return []
        self._index_is_whole = True
        return entries

    def trials_of(self, entries: Iterable[IndexEntry]) -> list[Trial]:
        """Return the trials of entries of this log, with their schedules; without those whose record is gone.

        Raises:
            DiskProblem: The log cannot be read.
        """
        try:
            with open_regular(self.path, 0) as file:
                trials = [_trial_at(file.fileno(), entry) for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_problem("read", self.path, error) from error
        return [trial for trial in trials if trial is not None]

    def fastest(self, most: int) -> list[Trial]:
        """Return the fastest trials, fastest first, at most `most` of them; of equal ones the older first.

        Raises:
            StorageError: The log cannot be read.
        """
        return self.trials_of(trial_index.by_time(self.entries())[:most])

    def add(self, trials: Iterable[Trial]) -> list[Trial]:
        """Append the trials whose candidates are not in the log yet.

        Returns:
            The trials that were appended.

        Raises:
            DiskProblem: Nothing was appended.
        """
        make_folders(self.path.parent)
        with self._log.transaction(lambda: trial_index.last_seal(self._index)) as transaction:
            self.follow()
            missing: dict[str, Trial] = {}
            for trial in trials:
                if trial.hash not in self._hashes:
                    missing.setdefault(trial.hash, trial)
            if missing:
                self._append(transaction, missing)
        return list(missing.values())

    def _append(self, transaction: Transaction, missing: Mapping[str, Trial]) -> None:
        """Append trials, and then their entries to the index. If it does not fit the log, make it anew."""
        before = Seal.of(os.stat(self.path))
        transaction.append([to_json(trial) for trial in missing.values()])
        after = self._log.seal
        if after is None:
            return
        added = self.follow().entries
        if not (self._index_is_whole and trial_index.append(self._index, added, before, after)):
            trial_index.publish(self._index, self._kept(), after)
            self._index_is_whole = True


def _fits(log: RecordLog, seal: Seal, position: Position) -> bool:
    """Return whether an index that ends at a position is of this log, as it is or before it grew."""
    try:
        now = Seal.of(os.stat(log.path))
    except OSError:
        return False
    has_grown = now.inode == seal.inode and now.size > seal.size
    return (now == seal or has_grown) and log.has(position)


def _trial_at(descriptor: int, entry: IndexEntry) -> Trial | None:
    line = os.pread(descriptor, entry.length, entry.end - entry.length)
    record = decode_line(line) if len(line) == entry.length else None
    trials = sound(Trial, [] if record is None else [record])
    return next((trial for trial in trials if trial.hash == entry.hash), None)


def trials_to_learn_from(log: TuningLog, most: int = MOST) -> list[Trial]:
    """Return trials of a log with their schedules, oldest first: all of them, or about `most`.

    Raises:
        StorageError: The log cannot be read.
    """
    entries = log.entries()
    return log.trials() if len(entries) <= most else log.trials_of(chosen(entries, most))


def chosen(entries: Sequence[IndexEntry], most: int) -> list[IndexEntry]:
    """Return the half of `most` that is fastest, and as many of the others, evenly spread; in their order."""
    best = {entry.hash for entry in by_time(entries)[: most // 2]}
    others = [entry for entry in entries if entry.hash not in best]
    wanted = min(len(others), most - len(best))
    spread = {others[number * len(others) // wanted].hash for number in range(wanted)}
    return [entry for entry in entries if entry.hash in best or entry.hash in spread]
