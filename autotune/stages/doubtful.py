"""Work on schedules that may be anything, in processes that they may end, and remember those that did.

A schedule from elsewhere is a claim, and one that ended its build here may end a process again. Such a schedule costs
nobody but itself: it is worked on apart, no stage takes long over all of them together, and what failed is left alone
until the next day.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.processes.isolate import isolated
from autotune.stages.context import StageContext
from autotune.storage.claim_outcomes import ClaimOutcome, ClaimOutcomes, Step, digest_of
from autotune.storage.formats import Trial

_LOG = logging.getLogger("autotune.stages")


@dataclass(frozen=True)
class Doubtful:
    """The doubtful schedules of one task of a job.

    Attributes:
        stage: That works on them.
        task: The index of the task in the job.
        step: What is made of them.
    """

    stage: StageContext
    task: int
    step: Step

    def each(
        self,
        trials: Sequence[Trial],
        work: Callable[[Trial], Any],
        made: Callable[[Any], str],
        seen: Collection[str] = (),
    ) -> Generator[tuple[Trial, Any], None, None]:
        """Yield the trials that can be worked on, each with what came of it, until they have taken their time.

        Left out are those that fail, those that failed within the last day, and those of which it is known that they
        make a program that was seen. Together they may take as long as a build; the others wait for the next stage.

        Args:
            work: What is done with each, in another process. Its result must be JSON.
            made: The hash of the program in a result; empty if there is none.
            seen: Hashes of programs that nobody needs.

        Raises:
            ProcessRefused: The machine starts no process.
        """
        outcomes = ClaimOutcomes(self._path)
        earlier = outcomes.known(self.step, time.time())
        wanted = [trial for trial in trials if _is_wanted(earlier.get(digest_of(trial)), seen)]
        new: list[ClaimOutcome] = []
        limit_s = self.stage.config.build.timeout_s
        deadline = time.monotonic() + limit_s
        try:
            with contextlib.closing(isolated(wanted, lambda: work, limit_s=limit_s)) as runs:
                for trial, run in runs:
                    hash = made(run.value) if run.kind == "ok" else ""
                    reason = "" if hash else run.reason or "it does not fit"
                    new.append(ClaimOutcome(digest_of(trial), self.step, time.time(), hash, reason))
                    if hash:
                        yield trial, run.value
                    if time.monotonic() > deadline:
                        break
        finally:
            self._remember(outcomes, earlier, new)

    @property
    def _path(self) -> Path:
        task = self.stage.spec.tasks[self.task]
        return self.stage.workspace.tuning_log(self.stage.spec.target_key, task.hash).claims

    def _remember(
        self, outcomes: ClaimOutcomes, earlier: Mapping[str, ClaimOutcome], new: Sequence[ClaimOutcome]
    ) -> None:
        outcomes.add([item for item in new if _is_news(item, earlier.get(item.schedule))])
        if failed := [item.reason for item in new if not item.hash]:
            name = self.stage.spec.tasks[self.task].name
            _LOG.warning(
                "%s: %d schedules cannot be used (%s); they are tried again in a day", name, len(failed), failed[-1]
            )


def _is_news(outcome: ClaimOutcome, before: ClaimOutcome | None) -> bool:
    """Return whether an outcome has to be written down: that features were extracted is seen by the features."""
    if before is not None:
        return before.hash != outcome.hash
    return outcome.step == "rebuild" or not outcome.hash


def _is_wanted(outcome: ClaimOutcome | None, seen: Collection[str]) -> bool:
    return outcome is None or (bool(outcome.hash) and outcome.hash not in seen)
