"""Which candidate a stage works on, noted so that one that kills its stage again and again is found out.

A candidate runs in a process of its own, and what it does there costs only itself. But some take the stage's
process along: the kernel, short of memory, kills that one; a driver hangs it beyond its limit. The daemon then tries
the stage again, and says how often it has. A note that the last attempt left behind names the candidate it died at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from autotune.errors import StorageError
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, InProgress, to_json
from autotune.storage.paths import JobPaths

_DEATHS = 2


@dataclass(frozen=True)
class Progress:
    """The candidate at which the attempts before this one ended, if they did, and the note of this one."""

    stage: Stage
    last: InProgress | None
    condemned: list[str] = field(default_factory=list)

    @property
    def deaths(self) -> int:
        """How often in a row the stage has died at `last`."""
        return 0 if self.last is None else self.last.deaths + 1

    @property
    def pardoned(self) -> int:
        """Attempts that candidates explain which have been found out."""
        before = 0 if self.last is None else self.last.pardoned
        return before + (self.deaths if self.condemned else 0)

    def condemn(self, candidate: Candidate, failure: Failure) -> None:
        """Shut out the candidate at which this stage died, before it is forgotten for the next such one."""
        self.stage.quarantine().add([self.stage.quarantined(candidate.hash, failure, time.time())])
        self.condemned.append(candidate.hash)

    def begin(self, candidate: Candidate) -> None:
        """Note that this candidate is next. It is no sync: the note need not survive the machine."""
        again = self.last is not None and self.last.hash == candidate.hash
        note = InProgress(candidate.hash, self.stage.attempt, self.deaths if again else 0, self.pardoned)
        name, version = InProgress.FORMAT
        text = json.dumps({"format": name, "version": version, **to_json(note)})
        with suppress(OSError):  # a full disk is not this candidate's failure
            self.stage.paths.in_progress(self.stage.file.task, self.stage.file.round).write_text(text)


@contextmanager
def followed(stage: Stage) -> Iterator[Progress]:
    """Follow the candidates of a stage; a stage that ends by itself, even with an error, leaves no note."""
    path = stage.paths.in_progress(stage.file.task, stage.file.round)
    try:
        last: InProgress | None = formats.read(InProgress, path)
    except (FileNotFoundError, StorageError):
        last = None
    # A stage that was killed with its daemon is not counted as an attempt: nobody is to blame for that.
    if last is not None and (not stage.attempt or last.attempt != stage.attempt - 1):
        last = None
    try:
        yield Progress(stage, last)
    finally:
        path.unlink(missing_ok=True)


def pardoned(paths: JobPaths, task: int, round: int, attempt: int) -> int:
    """How many attempts of a stage, up to this one that has failed, are not its own fault.

    Each candidate is found out once at most: a stage has not endless attempts.
    """
    try:
        note = formats.read(InProgress, paths.in_progress(task, round))
    except (FileNotFoundError, StorageError):
        return 0
    return note.pardoned if note.attempt == attempt else 0


def shut_out(stage: Stage, progress: Progress, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, with a failure for each that is in quarantine, or at which this stage died repeatedly."""
    quarantined = stage.quarantine().failures(stage.spec.target_kind)
    found = []
    for candidate in candidates:
        failure = candidate.failure or _known(quarantined.get(candidate.hash)) or _deadly(progress, candidate)
        found.append(replace(candidate, failure=failure))
    return found


def _known(failure: Failure | None) -> Failure | None:
    return None if failure is None else replace(failure, reason=f"in quarantine: {failure.reason}")


def _deadly(progress: Progress, candidate: Candidate) -> Failure | None:
    enough = max(1, min(_DEATHS, progress.stage.config.daemon.attempts - 1))
    if progress.last is None or progress.last.hash != candidate.hash or progress.deaths < enough:
        return None
    times = "once" if progress.deaths == 1 else f"{progress.deaths} times in a row"
    failure = Failure(progress.stage.file.kind, "crash", f"its stage died at it {times}")
    progress.condemn(candidate, failure)
    return failure
