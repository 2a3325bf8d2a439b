"""How far a job is: its state file, as the daemon writes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.daemon.job_journal import JobJournal
from autotune.daemon.job_trials import JobTrials
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.formats import ENDED, JobSpec, JobState, State, TaskProgress
from autotune.storage.journal import JobEnded, TaskSetAside
from autotune.storage.paths import JobPaths


@dataclass
class JobProgress:
    """The state of one job: what was last written, and which tasks were set aside since."""

    paths: JobPaths
    spec: JobSpec
    trials: JobTrials
    journal: JobJournal
    state: JobState

    @property
    def ended(self) -> bool:
        """Whether the job is at its end, as far as was written."""
        return self.state.state in ENDED

    def task(self, index: int) -> TaskProgress:
        """Return the progress of a task, as far as was written."""
        return self.state.tasks[index] if index < len(self.state.tasks) else TaskProgress()

    def set_aside(self, task: int, diagnosis: str) -> None:
        """Tune a task no further, because its stages fail. The rest of the job goes on."""
        tasks = [self.task(index) for index in range(len(self.spec.tasks))]
        tasks[task] = replace(tasks[task], set_aside=diagnosis)
        self.state = replace(self.state, tasks=tuple(tasks))
        self.journal.append(TaskSetAside(task, diagnosis))

    def publish(self, state: State, reason: Reason | None, retries: int) -> None:
        """Write the state file, if anything in it has changed.

        Args:
            state: The state of the job.
            reason: Why it is in it.
            retries: How many retries have begun.

        Raises:
            DiskProblem: The file could not be written. The state counts as unchanged.
        """
        tasks = tuple(
            TaskProgress(self.trials.counted(index), self.trials.best_us(index), self.task(index).set_aside)
            for index in range(len(self.spec.tasks))
        )
        done = sum(task.trials for task in tasks)
        finished = (self.state.finished_at or time.time()) if state in ENDED else None
        following = JobState(state, reason, done, tasks, finished, retries)
        if following == self.state and self.paths.state.exists():
            return
        if state in ENDED and not self.ended:  # in the journal first: who follows it stops once the state is an end
            self.journal.append(JobEnded(state, reason))
        formats.write(self.paths.state, following)
        self.state = following

    def line(self, task: int, measured: Mapping[str, Any]) -> str:
        """Return a line about the progress that a measurement of a task has brought."""
        best, now = self.trials.best_us(task), measured.get("best_us")
        times = f"best of these {now:.1f} us, of all {best:.1f} us" if best and now else "no time yet"
        failed = f", {measured['failed']} failed" if measured.get("failed") else ""
        return f"{self.trials.total}/{self.spec.trials} trials; {self.spec.tasks[task].name}: {times}{failed}"
