"""What became of doubtful schedules of one task on one kind of device, such as those that other workspaces claim.

Rebuilding such a schedule may crash or hang, and each search would try it again. So each outcome is written down, under
a digest of the schedule, since its hash is a claim as well. A schedule that was rebuilt is known by the program that
came of it. One that failed is tried again after a day, because the machine may have been the reason. The file is
derived: who loses it tries all again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.errors import StorageError
from autotune.schema import sound
from autotune.storage.atomic import make_folders
from autotune.storage.formats import Candidate, Trial, to_json
from autotune.storage.record_log import RecordLog

FORMAT = ("autotune-claim-outcomes", 1)
_FORGOTTEN_S = 24 * 3600.0

Step = Literal["rebuild", "features"]


@dataclass(frozen=True)
class ClaimOutcome:
    """What became of one schedule.

    Attributes:
        schedule: A digest of it, from `digest_of`.
        step: What was made of it.
        at: When, in seconds since 1970.
        hash: Of the program that it made; empty if it failed.
        reason: Why it failed, in one line.
    """

    schedule: str
    step: Step
    at: float
    hash: str = ""
    reason: str = ""


def digest_of(item: Candidate | Trial) -> str:
    """Return a digest of a schedule with its arguments. Equal ones have equal digests, whatever they claim to be."""
    return hashlib.sha256(json.dumps([item.trace, item.args]).encode()).hexdigest()[:32]


class ClaimOutcomes:
    """The outcomes on disk. Where the file cannot be read or written, there are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = RecordLog(path, *FORMAT)

    def known(self, step: Step, now: float) -> Mapping[str, ClaimOutcome]:
        """Return the last outcome of each schedule, by its digest, without failures of more than a day ago.

        Args:
            step: What was made of the schedules.
            now: The time, in seconds since 1970.
        """
        with suppress(StorageError):
            outcomes = sound(ClaimOutcome, self._log.read())
            lasting = [item for item in outcomes if item.step == step and _lasts(item, now)]
            return {outcome.schedule: outcome for outcome in lasting}
        return {}

    def add(self, outcomes: Sequence[ClaimOutcome]) -> None:
        """Write outcomes down, if that is possible."""
        if outcomes:
            with suppress(StorageError):
                make_folders(self._path.parent)
                self._log.append([to_json(outcome) for outcome in outcomes])


def _lasts(outcome: ClaimOutcome, now: float) -> bool:
    return bool(outcome.hash) or 0 <= now - outcome.at < _FORGOTTEN_S
