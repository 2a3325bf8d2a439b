"""The quarantine: candidates that did harm. No job of the workspace proposes, builds or runs them again.

A tuning log knows the failed trials of one task on one target. The quarantine applies to all targets of the same kind,
such as those with another number of threads, after a log was lost, and to jobs that have proposed the candidate
already. Boards have one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.schema import sound
from autotune.storage.formats import Failure, to_json
from autotune.storage.record_log import RecordLog

FORMAT = ("autotune-quarantine", 1)
HARMFUL = ("crash", "timeout", "memory", "wrong")


@dataclass(frozen=True)
class Quarantined:
    """One line of the quarantine: a candidate that no job of this workspace proposes, builds or runs again.

    `board` names the boards that it did harm on, as in `JobSpec`. Jobs for other devices may run it.
    """

    hash: str
    target: dict[str, Any]
    task: str
    failure: Failure
    job: str
    at: float
    board: str = ""


class Quarantine:
    """The quarantine on disk. To release a candidate, delete its line; to release all, delete the file."""

    def __init__(self, path: Path) -> None:
        self._log = RecordLog(path, *FORMAT)

    def failures(self, target_kind: str, board: str = "") -> dict[str, Failure]:
        """Return the failures of the candidates quarantined for a kind of target, by hash. Skip damaged lines.

        Args:
            board: The name of the boards; empty for devices of this machine.
        """
        return {
            entry.hash: entry.failure
            for entry in self.entries()
            if entry.target.get("kind") == target_kind and entry.board == board
        }

    def entries(self) -> list[Quarantined]:
        """Return all entries, oldest first. Skip damaged lines."""
        return list(sound(Quarantined, self._log.read()))

    def add(self, entries: Sequence[Quarantined]) -> None:
        """Add candidates whose failures are harmful; they are durable when this returns.

        Raises:
            DiskProblem: Nothing was written.
        """
        harmful = [entry for entry in entries if entry.failure.kind in HARMFUL]
        if not harmful:
            return
        with self._log.transaction() as transaction:
            quarantined = set(map(_identity, transaction.records))
            records = [to_json(entry) for entry in harmful]
            transaction.append([record for record in records if _identity(record) not in quarantined])


def _identity(record: dict[str, object]) -> tuple[str, str, str]:
    return str(record.get("hash")), str(record.get("target")), str(record.get("board", ""))
