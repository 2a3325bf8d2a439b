"""What the daemon reads and writes of one job: its journal, its stage files, and its state file."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.daemon.task_logs import JobTrials
from autotune.errors import DamagedFile, StorageError
from autotune.planning.view import RunningView, StageId, StageView
from autotune.processes.messages import StageReport
from autotune.reasons import Reason, WaitTopic
from autotune.storage import formats, journal
from autotune.storage.atomic import remove
from autotune.storage.formats import ENDED, JobSpec, JobState, StageFile, State, TaskProgress
from autotune.storage.job_files import make_folder, orphaned_artifacts, read_stage, set_aside
from autotune.storage.journal import (
    Event,
    JobEnded,
    StageDone,
    StageEvent,
    StageFailed,
    StageFileDamaged,
    TaskSetAside,
    UnknownEvent,
    WaitStarted,
)
from autotune.storage.paths import JobPaths
from autotune.storage.trees import discard_tree

_LOG = logging.getLogger("autotune.daemon")


@dataclass
class WorkedTime:
    """How long the stages of a job have run, whatever ran at once counting once.

    It is the length of the union of intervals, which are added in the order in which they end.

    Attributes:
        seconds: The length.
    """

    seconds: float = 0.0
    _intervals: list[tuple[float, float]] = field(default_factory=list)  # disjoint, in order

    def add(self, began: float, ended: float) -> None:
        """Take in an interval. One that ends before it began, since the clock was put back, counts for nothing."""
        if ended <= began:
            return
        while self._intervals and self._intervals[-1][1] >= began:
            first, last = self._intervals.pop()
            self.seconds -= last - first
            began = min(began, first)
            ended = max(ended, last)
        self._intervals.append((began, ended))
        self.seconds += ended - began


@dataclass
class JobJournal:
    """The journal of one job, as the daemon writes it. Work goes on if it cannot be written.

    Attributes:
        worked: How long its stages have run, those that are over.
    """

    paths: JobPaths
    worked: WorkedTime = field(default_factory=WorkedTime)
    _topic: WaitTopic | None = "turn"

    def __post_init__(self) -> None:
        self._log = journal.log_of(self.paths.journal)  # kept, for it need not check what it has written itself

    def recall(self, since: float) -> None:
        """Read from the file how long stages have run that ended after `since`, an epoch second.

        Raises:
            StorageError: The journal cannot be read.
        """
        self.worked = WorkedTime()
        for event in journal.read(self.paths.journal):
            if event.at > since:
                self._count(event)

    def _count(self, event: Event | UnknownEvent) -> None:
        if isinstance(event, StageEvent):
            self.worked.add(event.began, event.at)

    def append(self, event: Event) -> None:
        """Add an event. An error is logged and ignored."""
        self._count(event)
        try:
            self._log.append([journal.record_of(event)])
        except StorageError as error:
            _LOG.warning("%s", error)

    def stage_done(self, stage: RunningView, report: StageReport, facts: Mapping[str, Any]) -> None:
        """Add a stage that succeeded, and the facts that it reports of its work."""
        self.append(StageDone(**_place(stage, report), summary=dict(facts)))

    def stage_failed(self, stage: RunningView, report: StageReport) -> str:
        """Add a stage that failed.

        Returns:
            The diagnosis: what failed, how and why, in one line.
        """
        event = StageFailed(**_place(stage, report), outcome=report.outcome, detail=report.reason)
        self.append(event)
        return event.diagnosis

    def waiting(self, reason: Reason) -> None:
        """Add why the job waits, if it waits for something else than before."""
        if reason.topic != self._topic:
            self._topic = reason.topic
            self.append(WaitStarted(reason))


def _place(stage: RunningView, report: StageReport) -> dict[str, Any]:
    return {
        "kind": stage.kind,
        "task": stage.id.task,
        "round": stage.id.round,
        "began": round(stage.started_at + report.waited, 3),
        "seconds": report.seconds,
        "cpus": stage.cpus,
        "device": stage.device,
    }


@dataclass
class JobRounds:
    """The stage that each round of one job is at. `stages` are its stage files by round."""

    paths: JobPaths
    spec: JobSpec
    trials: JobTrials
    journal: JobJournal
    stages: dict[StageId, StageFile] = field(default_factory=dict)

    @property
    def views(self) -> tuple[StageView, ...]:
        """The stages as the planner sees them."""
        return tuple(StageView(id, file.kind, len(file.candidates)) for id, file in self.stages.items())

    def reload(self) -> None:
        """Read all stage files, and begin a round of each task that has none.

        Raises:
            StorageError: A stage file cannot be read, or a newer version wrote it.
        """
        self.stages.clear()
        make_folder(self.paths.stages)
        for path in self.paths.stage_files():
            self._read(path)
        self._delete_orphaned_libraries()
        self._begin_missing_rounds()

    def refresh(self, task: int) -> None:
        """Read the stage files of one task, which a worker has changed."""
        for id in [id for id in self.stages if id.task == task]:
            del self.stages[id]
        for path in self.paths.stage_files_of(task):
            with contextlib.suppress(FileNotFoundError):  # another round of the task has just ended; a report follows
                self._read(path)
        self._begin_missing_rounds()

    def skip(self, id: StageId) -> None:
        """End a round before its stage is done, and begin the next one.

        Raises:
            DiskProblem: A file could not be written or removed.
        """
        if not any(other.task == id.task and other.round > id.round for other in self.stages):
            path = self.paths.stage(id.task, id.round + 1)
            formats.write(path, StageFile(id.task, id.round + 1, "search"))
        remove(self.paths.stage(id.task, id.round))
        discard_tree(self.paths.artifacts_of(id.task, id.round))
        self.refresh(id.task)

    def _read(self, path: Path) -> None:
        try:
            file = read_stage(self.paths, path, self.spec)
        except DamagedFile as error:  # its trials are in the log, and its other candidates can be proposed again
            kept = set_aside(path)
            self._delete_orphaned_libraries()
            detail = f"{error}; kept as {kept.name}, and the search goes on from the log"
            self.journal.append(StageFileDamaged(detail))
        else:
            self.stages[StageId(self.spec.id, file.task, file.round)] = file

    def _delete_orphaned_libraries(self) -> None:
        """Delete the libraries of rounds without a stage file. Nothing measures them any more."""
        for folder in orphaned_artifacts(self.paths):
            discard_tree(folder)

    def _begin_missing_rounds(self) -> None:
        for task in set(self.spec.tunable) - {id.task for id in self.stages}:
            file = StageFile(task, self.trials.next_round(task), "search")
            path = self.paths.stage(task, file.round)
            formats.write(path, file)
            self._read(path)


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
        begin = f"{self.trials.total}/{self.spec.trials} trials; {self.spec.tasks[task].name}"
        if measured.get("rebuild"):
            return f"{begin}: what was built is gone or was changed; it is built again"
        best = self.trials.best_us(task)
        now = measured.get("best_us")
        shown = [self.spec.metric.text(us, f"{us:.1f} us") for us in (now, best) if us]
        times = f"best of these {shown[0]}, of all {shown[1]}" if len(shown) == 2 else "no time yet"
        failed = f", {measured['failed']} failed" if measured.get("failed") else ""
        why = f": {measured['why']}" if measured.get("why") else ""
        return f"{begin}: {times}{failed}{why}"
