"""What the daemon knows of one job, read back from its files whenever it starts."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.errors import DamagedFile, StorageError
from autotune.planning.view import JobView, RunningView, StageId, StageView, TaskView
from autotune.planning.waiting import waits_for
from autotune.storage import formats, journal
from autotune.storage.atomic import stamp
from autotune.storage.formats import ENDED, Control, JobSpec, JobState, StageFile, State, TaskProgress
from autotune.storage.job_files import make_folder, read_control, read_spec, read_stage, read_state, set_aside
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

_LOG = logging.getLogger("autotune.daemon")


@dataclass
class QueuedJob:
    """One job: its spec, what the user wants of it, its stages, its tuning logs and its state on disk."""

    workspace: Workspace
    paths: JobPaths
    config: Config
    spec: JobSpec
    control: Control
    state: JobState
    stages: dict[StageId, StageFile] = field(default_factory=dict)
    exhausted: set[int] = field(default_factory=set)
    failures: dict[StageId, int] = field(default_factory=dict)
    served_at: float = 0.0
    _waited_for: str = "turn"
    submitted_at: float = field(init=False)
    _view: JobView | None = None
    _control_seen: tuple[int, int] = (0, 0)
    _running_best: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.submitted_at = self.spec.submitted_at

    @classmethod
    def open(cls, workspace: Workspace, paths: JobPaths, config: Config) -> QueuedJob:
        """Read a job.

        Raises:
            StorageError: its spec is missing or damaged; the job cannot be run.
        """
        spec = read_spec(paths)
        job = cls(workspace, paths, config, spec, read_control(paths), read_state(paths))
        if not job.ended:
            job.reload()
        return job

    @property
    def id(self) -> int:
        return self.spec.id

    @property
    def ended(self) -> bool:
        return self.state.state in ENDED

    @property
    def active(self) -> bool:
        """Whether the planner may start stages of it."""
        return not self.ended and self.control.wanted == "run"

    @cached_property
    def _control_path(self) -> str:
        return str(self.paths.control)

    @cached_property
    def _logs(self) -> dict[int, TuningLog]:
        key = self.spec.target_key
        return {
            task: TuningLog(self.workspace.tuning_log(key, self.spec.tasks[task].hash).records)
            for task in self.spec.tunable
        }

    def obey(self) -> bool:
        """Read what the user wants again, if the file has changed; returns whether it had."""
        try:
            seen = stamp(self._control_path)
        except FileNotFoundError:
            return False
        if seen == self._control_seen:
            return False
        self._control_seen = seen
        self.control = read_control(self.paths)
        return True

    def restart(self) -> None:
        """Begin again after an end, as `retry` asks: from the trials there are, with no failure held against it."""
        self.state = JobState(retries_seen=self.control.retries)
        self.failures.clear()
        self.exhausted.clear()
        self.reload()

    def reload(self) -> None:
        """Read stage files and tuning logs again; a task without a stage file gets its next search back.

        Raises:
            StorageError: a stage file cannot be read, or a newer autotune wrote it.
        """
        self.stages.clear()
        self._view = None
        make_folder(self.paths.stages)
        for path in self.paths.stage_files():
            self._read_stage(path)
        self._drop_libraries()
        self.follow_logs()
        self._restore_searches()

    def _read_stage(self, path: Path) -> None:
        try:
            file = read_stage(self.paths, path, self.spec)
        except DamagedFile as error:  # what its round has measured is in the log, and the rest can be proposed again
            aside = set_aside(path)
            self._drop_libraries()
            self.note("damaged", reason=f"{error}; kept as {aside.name}, and the search goes on from the log")
        else:
            self.stages[StageId(self.id, file.task, file.round)] = file

    def _drop_libraries(self) -> None:
        """Delete libraries of rounds whose stage file is lost: they will not be measured."""
        for folder in self.paths.orphaned_artifacts():
            shutil.rmtree(folder, ignore_errors=True)

    def _restore_searches(self) -> None:
        for task in set(self.spec.tunable) - {id.task for id in self.stages}:
            self._restore_search(task)

    def _restore_search(self, task: int) -> None:
        mine = [trial.round for trial in self._logs[task].trials() if trial.job == self.paths.folder.name]
        path = self.paths.stage(task, 1 + max(mine, default=-1))
        formats.write(path, StageFile(task, 1 + max(mine, default=-1), "search"))
        self._read_stage(path)

    def refresh(self, task: int) -> None:
        """Read the stage files of one task again, after a worker changed them, and then its tuning log.

        A round that was measured meanwhile, and will report, is no longer in flight: its trials have to count
        from now on, or the job's budget would be spent twice.
        """
        for id in [id for id in self.stages if id.task == task]:
            del self.stages[id]
        for path in self.paths.stage_files_of(task):
            with contextlib.suppress(FileNotFoundError):  # another round of the task ends meanwhile, and will report
                self._read_stage(path)
        self._restore_searches()
        self._view = None
        self._follow(task)

    def follow_logs(self) -> None:
        """Take in the trials that were added to the tuning logs, by this job or another."""
        for task in self._logs:
            self._follow(task)

    def _follow(self, task: int) -> None:
        best, bests = math.inf, []
        for trial in self._logs[task].trials():
            best = min(best, trial.median_us) if trial.median_us is not None else best
            bests.append(best)
        if bests != self._running_best.get(task):
            self._running_best[task] = bests
            self._view = None

    def exhaust(self, task: int) -> None:
        """The search found no more candidates for a task."""
        self.exhausted.add(task)
        self._view = None

    def enter(self, others: Iterable[QueuedJob], now: float) -> None:
        """Settle when it was submitted, which orders the queue: after the jobs before it, and not in the future.

        The clock may have been wrong when it was submitted; a job neither waits for ever nor jumps the queue for it.
        """
        before = max((other.submitted_at for other in others if other.id < self.id), default=0.0)
        self.submitted_at = max(before, min(self.spec.submitted_at, now))
        self._view = None

    def serve(self, now: float) -> None:
        """A stage of the job starts."""
        self.served_at = now
        self._view = None

    def view(self) -> JobView:
        """The job as the planner sees it; the same object until the job has changed."""
        if self._view is None:
            self._view = self._look()
        return self._view

    def _look(self) -> JobView:
        return JobView(
            id=self.id,
            device="cpu" if self.spec.target_kind == "llvm" else self.spec.target_kind,
            tasks=tuple(self._task_view(index) for index in range(len(self.spec.tasks))),
            stages=tuple(_stage_view(id, file) for id, file in self.stages.items()),
            trials=self.spec.trials,
            trials_per_round=self.spec.trials_per_round,
            patience=self.config.job.patience,
            min_gain=self.config.job.min_gain,
            priority=self.spec.priority,
            submitted_at=self.submitted_at,
            served_at=max(self.served_at, self.submitted_at),
            deadline=self.spec.deadline,
        )

    def _task_view(self, index: int) -> TaskView:
        task = self.spec.tasks[index]
        bests = self._running_best.get(index, [])
        return TaskView(
            key=f"{self.spec.target_key}/{task.hash}",
            weight=task.weight,
            trials=self._counted(index),
            running_best=tuple(bests),
            exhausted=index in self.exhausted or not task.tunable,
            set_aside=bool(self._progress(index).set_aside),
        )

    def _counted(self, index: int) -> int:
        """Trials of a task that count towards this job's budget."""
        known = len(self._running_best.get(index, []))
        return max(0, known - self.spec.known_at_submit[index]) if self.spec.fresh else known

    def _progress(self, index: int) -> TaskProgress:
        return self.state.tasks[index] if index < len(self.state.tasks) else TaskProgress()

    def set_aside(self, task: int, reason: str) -> None:
        """Tune this task no further; the rest of the job goes on."""
        tasks = [self._progress(index) for index in range(len(self.spec.tasks))]
        tasks[task] = replace(tasks[task], set_aside=reason)
        self.state = replace(self.state, tasks=tuple(tasks))
        self._view = None
        self.note("set aside", task=task, reason=reason)

    def publish(self, state: State, reason: str) -> None:
        """Write the state, if anything in it has changed."""
        tasks = tuple(
            TaskProgress(self._counted(index), self._best(index), self._progress(index).set_aside)
            for index in range(len(self.spec.tasks))
        )
        done = sum(task.trials for task in tasks)
        finished = (self.state.finished_at or time.time()) if state in ENDED else None
        following = JobState(state, reason, done, tasks, finished, self.control.retries)
        if following == self.state and self.paths.state.exists():
            return
        if following.state in ENDED and not self.ended:
            self.note(state, reason=reason)  # before the end is known, for who follows the journal until then
        formats.write(self.paths.state, following)
        self.state = following

    def _best(self, index: int) -> float | None:
        bests = self._running_best.get(index, [])
        return round(bests[-1], 4) if bests and math.isfinite(bests[-1]) else None

    def progress(self, task: int, measured: Mapping[str, Any]) -> str:
        """What a measurement brought, in a line."""
        done = sum(self._counted(index) for index in range(len(self.spec.tasks)))
        best, now = self._best(task), measured.get("best_us")
        times = f"best of these {now:.1f} us, of all {best:.1f} us" if best and now else "no time yet"
        failed = f", {measured['failed']} failed" if measured.get("failed") else ""
        return f"{done}/{self.spec.trials} trials; {self.spec.tasks[task].name}: {times}{failed}"

    def wait_for(self, reason: str) -> None:
        """Add a line to the journal where the job waits for something else than it did."""
        about = waits_for(reason)
        if about != self._waited_for:
            self._waited_for = about
            self.note("waits", about=about, reason=reason)

    def note_stage(self, event: str, stage: RunningView, seconds: float, **details: Any) -> None:
        """Add a line about a stage that is over: which it was, since when, and what it ran on."""
        place = {"task": stage.id.task, "round": stage.id.round, "began": round(stage.started_at, 3)}
        device = {"device": stage.device} if stage.device else {}
        self.note(event, kind=stage.kind, **place, cpus=stage.cpus, **device, seconds=seconds, **details)

    def note(self, event: str, **details: Any) -> None:
        """Add a line to the job's journal, if the disk takes it: work does not depend on the journal."""
        try:
            journal.note(self.paths, event, **details)
        except StorageError as error:
            _LOG.warning("%s", error)


def _stage_view(id: StageId, file: StageFile) -> StageView:
    return StageView(id, file.kind, len(file.candidates))
