"""Plan what runs next, and hand the stages that start to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autotune.config import Config
from autotune.daemon import capacity
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.hours import Hours
from autotune.daemon.job_queue import JobQueue
from autotune.daemon.pause import Pause
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.planning import policies
from autotune.planning.budget import ended
from autotune.planning.estimates import Estimates
from autotune.planning.planner import Planner
from autotune.planning.view import MachineResources, Plan, RunningView, Start
from autotune.processes.messages import RunStage
from autotune.reasons import Reason
from autotune.storage.room import check_room

_BUSY_PAUSE_S = 1.0
_PLAN_EVERY_S = 10.0  # in any case; else when something has changed


@dataclass
class Dispatcher:
    """Asks the planner, and starts what it says. `plan` is its last answer.

    `planner` is None before the first plan.

    `stalled` says that nothing runs and that the last plan starts nothing: only a change from outside goes on.
    """

    config: Config
    queue: JobQueue
    running: RunningStages
    changes: Changes
    pause: Pause
    clock: DaemonClock
    hours: Hours
    estimates: Estimates
    policy: str
    plan: Plan = field(default_factory=lambda: Plan((), {}))
    planner: Planner | None = None
    stalled: bool = False
    _not_before: float = 0.0
    _plan_by: float = 0.0

    def dispatch(self) -> None:
        """Plan if something has changed or time is up, and start what the plan says.

        Raises:
            DiskProblem: The disk has no room for what stages write.
        """
        clock, now = self.clock.monotonic(), self.clock.time()
        if clock < self._not_before or self.pause.on or not (self.changes.unplanned or clock >= self._plan_by):
            return
        if self.pause.trouble:
            check_room(self.queue.workspace.jobs, self.queue.workspace.logs)
        self.changes.unplanned, self.changes.unpublished = False, True
        self._plan_by = clock + max(0.0, min(_PLAN_EVERY_S, self.hours.changes_at(now) - now))
        running = self.running.views
        views = [job.view() for job in self.queue.startable]
        views = [view for view in views if ended(view, running) is None]
        planner = self._planner_of(capacity.machine(self.config))
        self.plan = self.hours.explained(planner.plan(views, running, now, self.hours.limit(now)), now)
        for start in self.plan.starts:
            self._start(start)
        self.stalled = not self.running and not self.plan.late

    def _planner_of(self, machine: MachineResources) -> Planner:
        """The planner, which keeps what has not changed since the last tick; a new one for a changed machine."""
        if self.planner is None or self.planner.machine != machine:
            self.planner = Planner(machine, policies.get(self.policy), self.estimates)
        return self.planner

    def _start(self, start: Start) -> None:
        job, now = self.queue.jobs[start.stage.id.job], self.clock.time()
        view = RunningView(start.stage.id, start.stage.kind, start.cpus, start.count, start.device, now)
        self.running.start(job.spec.target_kind, view, self._request(start, job))
        job.stage_started(now)

    def _request(self, start: Start, job: QueuedJob) -> RunStage:
        stage = start.stage
        # A policy that waits for nobody leases nothing.
        resources = capacity.lease_names(self.config, start.cpus, start.device) if start.lease else []
        return RunStage(
            id=self.running.new_id(),
            job=job.paths.folder.name,
            task=stage.id.task,
            round=stage.id.round,
            kind=stage.kind,
            cpus=start.cpus,
            limit_s=capacity.limit_s(self.config, stage.kind, stage.candidates),
            resources=tuple(resources),
            count=start.count,
            device=start.device,
            attempt=job.failures.get(stage.id, 0),
        )

    def put_off(self, stage: RunningView) -> None:
        """Plan again in a moment, as somebody else has leased what a stage needs. Until then its job waits for that."""
        self._not_before = self.clock.monotonic() + _BUSY_PAUSE_S
        names = sorted(set(capacity.lease_names(self.config, stage.cpus, stage.device)))
        self.plan = replace(self.plan, waits={**self.plan.waits, stage.id.job: Reason("lease", resources=tuple(names))})
