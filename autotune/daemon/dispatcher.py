"""Plan what runs next, and hand the stages that start to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, islice

from autotune import devices
from autotune.config import Config
from autotune.daemon import capacity
from autotune.daemon.changes import Changes
from autotune.daemon.clock import DaemonClock
from autotune.daemon.devices_aside import DevicesAside
from autotune.daemon.job_queue import JobQueue
from autotune.daemon.pause import Pause
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.machine.leases import lease_holders
from autotune.planning import policies
from autotune.planning.budget import ended
from autotune.planning.estimates import Estimates
from autotune.planning.planner import Planner
from autotune.planning.view import MachineResources, Plan, RunningView, Start
from autotune.planning.windows import Hours
from autotune.processes.messages import RunStage
from autotune.reasons import Reason
from autotune.storage.room import check_room

_BUSY_PAUSE_S = 1.0
# How many jobs take in new trials at a time; that takes some 200 us each, and as long again on the planner's board.
_TAKEN_IN_AT_ONCE = 3
_PLAN_EVERY_S = 10.0  # in any case; else when something has changed


@dataclass
class Dispatcher:
    """Asks the planner, and starts what it says. `plan` is its last answer, without the reasons that `waits` has.

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
    aside: DevicesAside
    plan: Plan = field(default_factory=lambda: Plan((), {}))
    planner: Planner | None = None
    stalled: bool = False
    _not_before: float = 0.0
    _plan_by: float = 0.0
    _explained: bool = True

    def dispatch(self) -> None:
        """Plan if something has changed or time is up, and start what the plan says.

        Raises:
            DiskProblem: The disk has no room for what stages write.
            MachineProblem: The system starts no more processes.
        """
        clock, now = self.clock.monotonic(), self.clock.time()
        if clock < self._not_before or self.pause.on or not (self.changes.unplanned or clock >= self._plan_by):
            return
        if self.pause.trouble:
            check_room(self.queue.workspace.jobs, self.queue.workspace.logs)
        self.changes.unplanned, self.changes.unpublished = False, True
        self._plan_by = clock + max(0.0, min(_PLAN_EVERY_S, self.hours.changes_at(now) - now))
        running = self.running.views
        machine = self.aside.without(self.running.runner.machine() or capacity.machine(self.config))
        if not machine.cpus:
            return self._wait_for_nodes()
        planner = self._planner_of(machine)
        self._explained = self.hours.window is not None  # what a window is closed for follows from the reasons
        self.plan = self.hours.explained(self._up_to_date(planner, running, now), now)
        for start in self.plan.starts:
            self._start(start)
        self.stalled = not self.running and not self.plan.late and not self._board_may_come_back()

    def _up_to_date(self, planner: Planner, running: list[RunningView], now: float) -> Plan:
        """Plan. Of very many jobs that share a log not all take in its new trials at once, but all that start do.

        Where one that was to start does not after all, the others may not either: then twice as many take them in.
        """
        choose = planner.plan if self._explained else planner.choose
        jobs, limit = self.queue.startable, self.hours.limit(now)
        busy = {stage.id.job for stage in running}
        behind, count = (job for job in jobs if job.outdated), _TAKEN_IN_AT_ONCE
        views = {view.id: view for job in jobs if (view := job.last_view()) and (not job.over or job.id in busy)}
        starting = list[QueuedJob]()
        while True:
            for job in chain(starting, islice(behind, count)):
                views[job.id] = job.view()
                if job.over and job.id not in busy:
                    del views[job.id]
            count *= 2
            plan = choose(list(views.values()), running, now, limit)
            starting = [job for start in plan.starts if (job := self.queue.jobs[start.stage.id.job]).outdated]
            if not starting:
                self.changes.unplanned = next(behind, None) is not None
                return plan

    def _wait_for_nodes(self) -> None:
        """Start nothing, as a cluster without nodes can run nothing."""
        reason, jobs = Reason("no-node", detail=self.running.runner.trouble()), self.queue.startable
        waiting = [job.id for job in jobs if ended(job.view(), self.running.views) is None]
        self.plan, self._explained = Plan((), dict.fromkeys(waiting, reason)), True
        self.stalled = not waiting and not self.running

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
        resources = devices.lease_names(self.config, start.cpus, start.device) if start.lease else []
        return RunStage(
            id=self.running.new_id(),
            job=job.paths.folder.name,
            task=stage.id.task,
            round=stage.id.round,
            kind=stage.kind,
            cpus=start.cpus,
            limit_s=capacity.limit_s(self.config, stage.kind, stage.candidates, devices.of_job(job.spec, self.config)),
            resources=tuple(resources),
            count=start.count,
            device=start.device,
            attempt=job.failures.get(stage.id, 0),
        )

    def waits(self) -> dict[int, Reason]:
        """Return why the jobs of the last plan wait that run nothing, by id. Of very many that takes milliseconds."""
        if self._explained or self.planner is None:
            return self.aside.explained(self.plan.waits)
        waits = self.planner.waits(self.clock.time(), self.running.views)
        return self.aside.explained({**waits, **self.plan.waits})

    def _board_may_come_back(self) -> bool:
        return bool(self.aside.shown) and self.aside.hoped_for(self.waits().values())

    def put_off(self, stage: RunningView) -> None:
        """Plan again in a moment, as somebody else has leased what a stage needs. Until then its job waits for that."""
        self._not_before = self.clock.monotonic() + _BUSY_PAUSE_S
        names = sorted(set(devices.lease_names(self.config, stage.cpus, stage.device)))
        found = lease_holders(self.config.machine.lock_folder, names)
        reason = Reason("lease", resources=tuple(names), holders=tuple(map(str, found)))
        self.plan = replace(self.plan, waits={**self.plan.waits, stage.id.job: reason})
