"""The tuning log: an append-only file with the trials of one task on one kind of device.

All progress is derived from these logs. Two jobs that share a task share its log. Beside a log is its index, from which
most is read: see `trial_index.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.errors import InvalidData, disk_problem
from autotune.storage import trial_index
from autotune.storage.atomic import make_folders
from autotune.storage.formats import Trial, from_json, to_json
from autotune.storage.log_lines import START, Position, decode_line
from autotune.storage.paths import TaskLogPaths
from autotune.storage.record_log import RecordLog, Seal, Transaction
from autotune.storage.trial_index import Entry

FORMAT = ("autotune-trials", 1)


class NewEntries(NamedTuple):
    """The entries of the trials since the last look, oldest first.

    `restarted` means that the log has changed before that: they are all there are, and replace the earlier ones.
    """

    entries: list[Entry]
    restarted: bool


class EntryReader:
    """Follows what planning needs of a tuning log. It keeps the hashes only.

    Attributes:
        index_is_whole: Whether every row of the index is known to be as it was written.
    """

    def __init__(self, path: Path) -> None:
        self._log = RecordLog(path, *FORMAT)
        self._index = TaskLogPaths(path).index
        self._position = START
        self._seen: set[str] = set()
        self.index_is_whole = False

    @property
    def hashes(self) -> set[str]:
        """The hashes of the trials so far."""
        return self._seen

    def new(self) -> NewEntries:
        """Return the entries that were added since the last call.

        Raises:
            StorageError: The log cannot be read, is of another format, or was written by a newer autotune.
        """
        found, begun = list[Entry](), self._position != START
        if not begun:
            found = self._from_index()
        lines, restarted = self._log.lines_from(self._position)
        if restarted:
            self._position = START
            self._seen.clear()
            return NewEntries(self.new().entries, restarted=True)
        for line, position in lines:
            self._position = position
            if (entry := trial_index.entry_of(line, position)) is not None:
                found.append(entry)
        return NewEntries(self._without_repeats(found), restarted=False)

    def _without_repeats(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries whose trials were not there before, and take note of them."""
        new = []
        for entry in entries:
            if entry.hash not in self._seen:
                self._seen.add(entry.hash)
                new.append(entry)
        return new

    def _from_index(self) -> list[Entry]:
        """Return the entries of the index, if it fits the log, and go on behind them."""
        self.index_is_whole = False
        if (found := trial_index.read(self._index)) is None:
            return []
        entries, seal = found
        if not _fits(self._log, seal, entries[-1].position):
            return []
        self.index_is_whole, self._position = True, entries[-1].position
        return entries


class TuningLog:
    """Trials on disk. They are durable once `add` has returned, and no candidate is in the log twice.

    An instance reads only what was appended since its last read. Keep it as long as you follow the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RecordLog(path, *FORMAT)
        self._index = TaskLogPaths(path).index
        self._position = START
        self._trials: dict[str, Trial] = {}
        self._reader = EntryReader(path)
        self._entries: list[Entry] = []

    def trials(self) -> list[Trial]:
        """Return all trials with their schedules, oldest first. Damaged lines are skipped.

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

    def entries(self) -> list[Entry]:
        """Return what planning needs of all trials, oldest first. That is much less work than `trials`.

        Raises:
            StorageError: As of `trials`.
        """
        self._follow()
        return list(self._entries)

    def _follow(self) -> list[Entry]:
        """Take in the entries of new trials, and return them."""
        new = self._reader.new()
        if new.restarted:
            self._entries.clear()
        self._entries += new.entries
        return new.entries

    def trials_of(self, entries: Iterable[Entry]) -> list[Trial]:
        """Return the trials of entries of this log, with their schedules; without those whose record is gone.

        Raises:
            DiskProblem: The log cannot be read.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                found = [_trial_at(file.fileno(), entry) for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_problem("read", self.path, error) from error
        return [trial for trial in found if trial is not None]

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
            self._follow()
            missing: dict[str, Trial] = {}
            for trial in trials:
                if trial.hash not in self._reader.hashes:
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
        added = self._follow()
        if not (self._reader.index_is_whole and trial_index.append(self._index, added, before, after)):
            trial_index.publish(self._index, self._entries, after)
            self._reader.index_is_whole = True


def _fits(log: RecordLog, seal: Seal, position: Position) -> bool:
    """Return whether an index that ends at a position is of this log, as it is or before it grew."""
    try:
        found = Seal.of(os.stat(log.path))
    except OSError:
        return False
    grown = found.inode == seal.inode and found.size > seal.size
    return (found == seal or grown) and log.has(position)


def _trial_at(descriptor: int, entry: Entry) -> Trial | None:
    line = os.pread(descriptor, entry.length, entry.end - entry.length)
    record = decode_line(line) if len(line) == entry.length else None
    trial = None if record is None else _trial(record)
    return trial if trial is not None and trial.hash == entry.hash else None


def _trial(record: dict[str, object]) -> Trial | None:
    try:
        return from_json(Trial, record)
    except InvalidData:
        return None
