"""One job as the daemon sees it, read from its files whenever a daemon starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon import capacity
from autotune.daemon.job_record import JobJournal, JobProgress, JobRounds
from autotune.daemon.task_logs import JobTrials, TaskLogs
from autotune.planning.budget import ended, settled
from autotune.planning.view import JobView, StageId, TaskView
from autotune.reasons import Reason
from autotune.storage import confirmation
from autotune.storage.atomic import stamp
from autotune.storage.confirmation import Confirmation, read_confirmation
from autotune.storage.formats import ENDED, Control, JobSpec, JobState, State
from autotune.storage.job_files import check_owner, read_control, read_spec, read_state
from autotune.storage.paths import JobPaths, Workspace

_NO_CONTROL = (0, 0)


@dataclass
class QueuedJob:
    """One job: its spec, what the user wants of it, its rounds, its trials, its state and its journal.

    Attributes:
        confirmation: What was found when the whole model was last timed, for `--stop-at`.
        exhausted: The tasks whose search has no more candidates.
        failures: How often the stage of a round has failed in a row.
        active: Whether the planner may start stages of it.
        over: Whether the job has come to its end, by its last view, unless a stage of it runs.
        submitted_at: When it counts as submitted, in epoch seconds; see `enter_queue`.
        served_at: When a stage of it last started, in epoch seconds.
    """

    paths: JobPaths
    config: Config
    spec: JobSpec
    control: Control
    rounds: JobRounds
    trials: JobTrials
    progress: JobProgress
    journal: JobJournal
    confirmation: Confirmation | None = None
    exhausted: set[int] = field(default_factory=set)
    failures: dict[StageId, int] = field(default_factory=dict)
    submitted_at: float = 0.0
    served_at: float = 0.0
    # A tick looks at these of every job, of which there may be thousands: they are attributes, not properties.
    active: bool = field(init=False)
    over: bool = field(init=False, default=False)
    _view: JobView | None = None
    _control_seen: tuple[int, int] = _NO_CONTROL
    _settled: tuple[tuple[TaskView, ...], bool] = ((), False)

    def __post_init__(self) -> None:
        self._note_active()

    @classmethod
    def open(cls, workspace: Workspace, paths: JobPaths, config: Config, logs: TaskLogs | None = None) -> QueuedJob:
        """Read a job.

        Args:
            paths: Its files.
            logs: The tuning logs that are followed already.

        Raises:
            StorageError: A file of the job cannot be used; the job cannot be run.
        """
        check_owner(paths)
        control_seen = _stamp(paths)
        spec = read_spec(paths)
        control = read_control(paths)
        journal = JobJournal(paths)
        trials = JobTrials(workspace, paths, spec, logs or TaskLogs(), control.forgiven)
        rounds = JobRounds(paths, spec, trials, journal)
        progress = JobProgress(paths, spec, trials, journal, read_state(paths))
        if spec.within_s is not None:
            journal.recall(control.forgiven_at)
        job = cls(paths, config, spec, control, rounds, trials, progress, journal, submitted_at=spec.submitted_at)
        if not job.ended:  # else `refresh_control` looks for a retry
            job._control_seen = control_seen
            job.reload()
        return job

    @property
    def id(self) -> int:
        return self.spec.id

    @property
    def state(self) -> JobState:
        """The state that was last written."""
        return self.progress.state

    @property
    def ended(self) -> bool:
        """Whether the job is at its end, as far as was written."""
        return self.progress.ended

    def _note_active(self) -> None:
        self.active = self.control.wanted == "run" and self.progress.state.state not in ENDED

    def refresh_control(self) -> bool:
        """Read what the user wants, if the file has changed. Returns whether it has."""
        seen = _stamp(self.paths)
        if seen in (_NO_CONTROL, self._control_seen):
            return False
        self._control_seen = seen
        self.control = read_control(self.paths)
        self._note_active()
        return True

    def restart(self) -> None:
        """Begin the retry of a job that has ended. It keeps its trials, and its failures are forgotten.

        Raises:
            StorageError: A file of the job cannot be read.
        """
        self.trials.forgiven = self.control.forgiven
        if self.spec.within_s is not None:
            self.journal.recall(self.control.forgiven_at)
        self.progress.state = JobState(retries_seen=self.control.retries)
        self._note_active()
        self.failures.clear()
        self.exhausted.clear()
        confirmation.forget_failure(self.paths)
        self.reload()

    def reload(self) -> None:
        """Read all stage files and tuning logs.

        Raises:
            StorageError: A file cannot be read, or a newer version wrote it.
        """
        self._view = None
        self.rounds.reload()
        self._read_confirmation()
        self.trials.refresh_all()

    def refresh(self, task: int) -> None:
        """Read the stage files of a task, which a worker has changed, and then its tuning log.

        Both are needed: a round that was measured but not reported yet is no longer in flight. If its trials did not
        count from now on, the job's budget would be spent twice.
        """
        self._view = None
        self.rounds.refresh(task)
        self._read_confirmation()
        self.trials.refresh(task)

    def _read_confirmation(self) -> None:
        self.confirmation = read_confirmation(self.paths) if self.spec.stop_at_ms is not None else None

    @property
    def confirmed_ms(self) -> float | None:
        """How long a run of the whole model took when it was found to be as fast as `--stop-at` says; else None."""
        limit = self.spec.stop_at_ms
        last = self.confirmation
        return last.latency_ms if limit is not None and last is not None and last.meets(limit) else None

    def mark_exhausted(self, task: int) -> None:
        """Note that the search of a task has no more candidates."""
        self.exhausted.add(task)
        self._view = None

    def enter_queue(self, others: Iterable[QueuedJob], now: float) -> None:
        """Decide when the job counts as submitted, which orders the queue: not before older jobs, nor in the future.

        The clock may have been wrong when it was submitted. The job must neither wait for ever nor jump the queue.
        """
        before = max((other.submitted_at for other in others if other.id < self.id), default=0.0)
        self.submitted_at = max(before, min(self.spec.submitted_at, now))
        self._view = None

    def stage_started(self, now: float) -> None:
        """Note that a stage of the job started at `now`, an epoch second."""
        self.served_at = now
        self._view = None

    def set_aside(self, task: int, diagnosis: str) -> None:
        """Tune a task no further, because its stages fail. The rest of the job goes on."""
        self.progress.set_aside(task, diagnosis)
        self._view = None

    def give_up_confirming(self, id: StageId, diagnosis: str) -> None:
        """Tune on without the time of the whole model, because it cannot be timed.

        Raises:
            DiskProblem: A file could not be written.
        """
        self.confirmation = confirmation.give_up(self.paths, diagnosis)
        self.rounds.skip(id)
        self._view = None

    def publish(self, state: State, reason: Reason | None) -> None:
        """Write the state file, if anything in it has changed. See `JobProgress.publish`."""
        self.progress.publish(state, reason, self.control.retries)
        self._note_active()

    def view(self) -> JobView:
        """Return the job as the planner sees it: the same object until the job has changed."""
        if self._view is None or self.outdated:
            self.trials.changed = False
            self._view = self._new_view()
            self.over = ended(self._view, ()) is not None
        return self._view

    @property
    def outdated(self) -> bool:
        """Whether the job has changed since its last view, such as by trials that another job has added."""
        view = self._view
        if view is None or self.trials.changed:
            return True
        return self.spec.within_s is not None and view.time_used != _time_used(self)

    def last_view(self) -> JobView:
        """Return the view that was last asked for, even if trials have been added since."""
        return self._view or self.view()

    def _new_view(self) -> JobView:
        view = JobView(
            id=self.id,
            device=capacity.job_device(self.trials.workspace, self.config, self.spec),
            tasks=tuple(_task_view(self, index) for index in range(len(self.spec.tasks))),
            stages=self.rounds.views,
            trials=self.spec.trials,
            trials_per_round=self.spec.trials_per_round,
            patience=self.config.job.patience,
            min_gain=self.config.job.min_gain,
            priority=self.spec.priority,
            submitted_at=self.submitted_at,
            served_at=max(self.served_at, self.submitted_at),
            deadline=self.spec.deadline,
            time_used=_time_used(self),
            has_stop_at=self.spec.stop_at_ms is not None,
            stop_at_met=self.confirmed_ms is not None,
        )
        if not self.spec.automatic:
            return view
        if self._settled[0] != view.tasks:
            self._settled = (view.tasks, settled(view))
        return replace(view, settled=self._settled[1])


def _task_view(job: QueuedJob, index: int) -> TaskView:
    task = job.spec.tasks[index]
    return TaskView(
        key=f"{job.spec.target_key}/{task.hash}",
        weight=task.weight,
        trials=job.trials.counted(index),
        running_best=job.trials.running_best(index),
        exhausted=index in job.exhausted or not task.is_tuned,
        set_aside=bool(job.progress.task(index).set_aside),
        gflop=task.gflop,
    )


def _stamp(paths: JobPaths) -> tuple[int, int]:
    try:
        return stamp(paths.control)
    except FileNotFoundError:
        return _NO_CONTROL


def _time_used(job: QueuedJob) -> bool:
    """Return whether the stages of a job have run for as long as they may."""
    limit = job.spec.within_s
    return limit is not None and job.journal.worked.seconds >= limit
