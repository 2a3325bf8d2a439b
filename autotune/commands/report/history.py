"""The tuning logs of a job, followed: what was read once is not read again."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.commands.report import trials
from autotune.commands.report.trials import LatencyPoint, TaskTrials
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import Entry
from autotune.storage.tuning_log import TuningLog


@dataclass(frozen=True)
class History:
    """The trials of a job. `logs` has the tuning log of each task; None for a task that has nothing to tune."""

    spec: JobSpec
    logs: tuple[TuningLog | None, ...]

    def tasks(self) -> list[TaskTrials]:
        """Return the trials of each task, as they are now.

        Raises:
            StorageError: A log cannot be read.
        """
        return [
            TaskTrials(()) if log is None else trials.split(self.spec, index, log.trials())
            for index, log in enumerate(self.logs)
        ]

    def outline(self) -> list[TaskTrials]:
        """Return the trials of each task without schedules and reasons of failures, which takes much less time.

        Raises:
            StorageError: A log cannot be read.
        """
        job = f"{self.spec.id:04}-{self.spec.name}"
        return [
            TaskTrials(())
            if log is None
            else trials.split(self.spec, index, [_outline(entry, job) for entry in log.entries()])
            for index, log in enumerate(self.logs)
        ]

    def latency(self) -> tuple[LatencyPoint, ...]:
        """Return how the latency of the model fell.

        Raises:
            StorageError: A log cannot be read.
        """
        return trials.latency_curve(self.spec, self.outline())


def _outline(entry: Entry, job: str) -> Trial:
    times = () if entry.median_us is None else (entry.median_us,)
    whose = job if entry.measured_by(job) else ""
    return Trial(entry.hash, None, None, times, None, whose, entry.round, entry.at)


def of(workspace: Workspace, paths: JobPaths) -> History:
    """Return the history of a job.

    Raises:
        StorageError: What was submitted cannot be read.
    """
    spec = read_spec(paths)
    logs = (
        TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) if task.tunable else None
        for task in spec.tasks
    )
    return History(spec, tuple(logs))
