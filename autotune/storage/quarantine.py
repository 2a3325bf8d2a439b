"""The quarantine: candidates that did harm, so that no job of the workspace proposes, builds or runs them again.

A tuning log knows the failed trials of one task on one target. The quarantine holds for all: other targets of the
same kind (another number of threads), logs that were lost, and jobs that have proposed the candidate already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.errors import InvalidData
from autotune.storage.formats import Failure, Quarantined, from_json, to_json
from autotune.storage.record_log import RecordLog

FORMAT = ("autotune-quarantine", 1)
HARMFUL = ("crash", "timeout", "memory", "wrong")


class Quarantine:
    """The list on disk. To let a candidate out, remove the file, or its line."""

    def __init__(self, path: Path) -> None:
        self._log = RecordLog(path, *FORMAT)

    def failures(self, target_kind: str) -> dict[str, Failure]:
        """What the candidates that are shut out did, by hash. Damaged lines are passed over."""
        found = filter(None, map(_entry, self._log.read()))
        return {entry.hash: entry.failure for entry in found if entry.target.get("kind") == target_kind}

    def add(self, entries: Sequence[Quarantined]) -> None:
        """Shut these out; durable when it returns.

        Raises:
            DiskProblem: nothing was written.
        """
        harmful = [entry for entry in entries if entry.failure.kind in HARMFUL]
        if not harmful:
            return
        with self._log.transaction() as transaction:
            known = {(record.get("hash"), str(record.get("target"))) for record in transaction.records}
            records = [to_json(entry) for entry in harmful]
            transaction.append([item for item in records if (item["hash"], str(item["target"])) not in known])


def _entry(record: dict[str, object]) -> Quarantined | None:
    try:
        return from_json(Quarantined, record)
    except InvalidData:
        return None
