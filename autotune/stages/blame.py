"""Which candidate a stage works on, noted in a file, so that a candidate that keeps killing its stage is found.

A candidate runs in a process of its own, and usually harms only that process. But some end the stage's process as
well: the kernel kills it when memory runs out, or a driver hangs it beyond its time limit. The daemon then repeats the
stage and tells it the number of the attempt. The note that the last attempt left names the candidate it died at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from autotune.errors import StorageError
from autotune.regular_file import open_to_write
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, to_json
from autotune.storage.paths import JobPaths

# A candidate goes into quarantine when its stage has died at it this often in a row.
_DEATHS = 2


@dataclass(frozen=True)
class InProgress:
    """The candidate that a stage is working on.

    Attributes:
        attempt: How often the stage was started before.
        deaths: How often it died while it was working on this candidate.
        pardoned: How many attempts died because of other candidates, which have been identified since.
    """

    FORMAT = ("autotune-in-progress", 1)

    hash: str
    attempt: int
    deaths: int = 0
    pardoned: int = 0


@dataclass(frozen=True)
class CandidateProgress:
    """The candidate at which a stage died before, and the note of the candidate it works on now.

    Attributes:
        last: The note of the attempt before this one; None if that one did not die at a candidate.
        quarantined: Hashes of candidates that this attempt has put into quarantine.
    """

    stage: Stage
    last: InProgress | None
    quarantined: list[str] = field(default_factory=list)

    @property
    def deaths(self) -> int:
        """How often in a row the stage has died at the candidate of `last`."""
        return 0 if self.last is None else self.last.deaths + 1

    @property
    def explained(self) -> int:
        """Number of failed attempts of this stage that quarantined candidates explain."""
        before = 0 if self.last is None else self.last.pardoned
        return before + (self.deaths if self.quarantined else 0)

    def quarantine(self, candidate: Candidate, failure: Failure) -> None:
        """Put the candidate at which this stage died into quarantine."""
        self.stage.quarantine().add([self.stage.quarantined(candidate.hash, failure, time.time())])
        self.quarantined.append(candidate.hash)

    def begin(self, candidate: Candidate) -> None:
        """Note that this candidate is next. The note is not synced to disk, as it need not survive a power cut."""
        if not self.stage.bench.candidates_can_kill:
            return
        again = self.last is not None and self.last.hash == candidate.hash
        note = InProgress(candidate.hash, self.stage.attempt, self.deaths if again else 0, self.explained)
        name, version = InProgress.FORMAT
        text = json.dumps({"format": name, "version": version, **to_json(note)})
        with suppress(OSError):  # a full disk is not this candidate's failure
            path = self.stage.paths.in_progress(self.stage.file.task, self.stage.file.round)
            with open_to_write(path, "change") as file:
                file.truncate(0)
                file.write(text.encode())


@contextmanager
def tracked(stage: Stage) -> Iterator[CandidateProgress]:
    """Track which candidate a stage works on. A stage that ends by itself, even with an error, leaves no note."""
    path = stage.paths.in_progress(stage.file.task, stage.file.round)
    try:
        last: InProgress | None = formats.read(InProgress, path)
    except (FileNotFoundError, StorageError):
        last = None
    # A stage that was killed with its daemon does not count as an attempt, since no candidate caused that.
    if last is not None and (not stage.attempt or last.attempt != stage.attempt - 1):
        last = None
    try:
        yield CandidateProgress(stage, last)
    finally:
        path.unlink(missing_ok=True)


def explained_attempts(paths: JobPaths, task: int, round: int, attempt: int) -> int:
    """Return how many failed attempts of a stage, up to this one, are the fault of quarantined candidates.

    Each candidate is quarantined once at most, so the number of attempts of a stage is limited.
    """
    try:
        note = formats.read(InProgress, paths.in_progress(task, round))
    except (FileNotFoundError, StorageError):
        return 0
    return note.pardoned if note.attempt == attempt else 0


def with_quarantine(stage: Stage, progress: CandidateProgress, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Add a failure to each candidate that is in quarantine, or goes there because this stage died at it."""
    quarantined = stage.quarantine().failures(stage.spec.target_kind, stage.spec.board)
    judged = []
    for candidate in candidates:
        failure = candidate.failure or _known(quarantined.get(candidate.hash)) or _deadly(progress, candidate)
        judged.append(replace(candidate, failure=failure))
    return judged


def _known(failure: Failure | None) -> Failure | None:
    return None if failure is None else replace(failure, reason=f"in quarantine: {failure.reason}")


def _deadly(progress: CandidateProgress, candidate: Candidate) -> Failure | None:
    """Quarantine a candidate at which the stage died often enough; return the failure, or None for any other one."""
    enough = max(1, min(_DEATHS, progress.stage.config.daemon.attempts - 1))
    if progress.last is None or progress.last.hash != candidate.hash or progress.deaths < enough:
        return None
    times = "once" if progress.deaths == 1 else f"{progress.deaths} times in a row"
    failure = Failure(progress.stage.file.kind, "crash", f"its stage died at it {times}")
    progress.quarantine(candidate, failure)
    return failure
