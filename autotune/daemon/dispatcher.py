"""Ask the planner which stages start, and hand these to the runner."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from autotune.daemon.clock import DaemonClock, Pause
from autotune.daemon.job_queue import NOTHING, SOMETHING, Change, JobQueue
from autotune.daemon.queued_job import QueuedJob
from autotune.daemon.running import RunningStages
from autotune.planning import policies
from autotune.planning.budget import ended
from autotune.planning.estimates import Estimates
from autotune.planning.planner import Planner
from autotune.planning.view import JobView, MachineResources, RunningView, StagePlan
from autotune.planning.windows import Hours
from autotune.reasons import Reason
from autotune.storage.disk_space import check_room

_BUSY_PAUSE_S = 1.0
# How many jobs take in new trials at a time; that takes some 200 us each, and as long again on the planner's board.
_TAKEN_IN_AT_ONCE = 3
_PLAN_EVERY_S = 10.0  # in any case; else when something has changed


@dataclass
class Dispatcher:
    """Asks the planner, and starts what it says.

    Attributes:
        plan: Its last answer, without the reasons that `waits` adds.
        planner: None before the first plan.
        stalled: Whether nothing runs and the last plan starts nothing, so that only a change from outside goes on.
    """

    queue: JobQueue
    running: RunningStages
    clock: DaemonClock
    hours: Hours
    estimates: Estimates
    policy: str
    plan: StagePlan = field(default_factory=lambda: StagePlan((), {}))
    planner: Planner | None = None
    stalled: bool = False
    _outdated: bool = True  # whether something has changed that the last plan did not know
    _explained: bool = True  # whether the last plan says why jobs wait
    _not_before: float = 0.0
    _plan_by: float = 0.0

    def dispatch(self, change: Change, pause: Pause) -> Change:
        """Plan if something has changed or time is up, and start what the plan says.

        Args:
            change: What has changed since the last call.
            pause: Keeps stages from starting while it is on.

        Raises:
            DiskProblem: The disk has no room for what stages write.
            MachineProblem: The system starts no more processes.
        """
        self._outdated |= change.any
        clock = self.clock.monotonic()
        if clock < self._not_before or pause.on or not (self._outdated or clock >= self._plan_by):
            return NOTHING
        if pause.trouble:
            check_room(self.queue.workspace.jobs, self.queue.workspace.logs)
        now = self.clock.time()
        self._outdated = True  # until what the plan starts has started
        self._plan_by = clock + max(0.0, min(_PLAN_EVERY_S, self.hours.changes_at(now) - now))
        machine = self.running.machine()
        self._outdated = self._start_stages(machine, now) if machine.cpus else self._wait_for_nodes()
        return SOMETHING

    def _start_stages(self, machine: MachineResources, now: float) -> bool:
        """Plan, and start what the plan says. Returns whether jobs have yet to take in new trials."""
        planner = self._planner_of(machine)
        self._explained = self.hours.window is not None  # what a window is closed for follows from the reasons
        plan, behind = self._plan(planner, now)
        self.plan = self.hours.explained(plan, now)
        for start in self.plan.starts:
            self.running.start(start, self.queue.jobs[start.stage.id.job], self.clock.time())
        aside = self.running.aside
        self.stalled = not (self.running or self.plan.late or (aside.shown and aside.hoped_for(self.waits().values())))
        return behind

    def _wait_for_nodes(self) -> bool:
        """Start nothing, as a cluster without nodes can run nothing. Returns that nothing is left to plan for."""
        reason = Reason("no-node", detail=self.running.runner.trouble())
        running = self.running.views
        waiting = [job.id for job in self.queue.startable if ended(job.view(), running) is None]
        self.plan = StagePlan((), dict.fromkeys(waiting, reason))
        self._explained = True
        self.stalled = not waiting and not self.running
        return False

    def _planner_of(self, machine: MachineResources) -> Planner:
        """The planner, which keeps what has not changed since the last tick; a new one for a changed machine."""
        if self.planner is None or self.planner.machine != machine:
            self.planner = Planner(machine, policies.get(self.policy), self.estimates)
        return self.planner

    def _plan(self, planner: Planner, now: float) -> tuple[StagePlan, bool]:
        """Plan with the last views of the jobs, of which a few are brought up to date each time.

        When a log grows that very many jobs share, to update all of them would take seconds. But a job that starts a
        stage must know all trials, or it would spend its budget twice. So if the plan starts stages of outdated jobs,
        these and twice as many others are updated, and the plan is made again.

        Returns:
            The plan, and whether there are outdated jobs left.
        """
        choose = planner.plan if self._explained else planner.choose
        limit = self.hours.limit(now)
        running = self.running.views
        busy = {stage.id.job for stage in running}
        jobs = self.queue.startable
        views = _last_views(jobs, busy)
        outdated = (job for job in jobs if job.outdated)
        count = _TAKEN_IN_AT_ONCE
        to_update = list(islice(outdated, count))
        while True:
            _update(views, to_update, busy)
            plan = choose(list(views.values()), running, now, limit)
            starting = [self.queue.jobs[start.stage.id.job] for start in plan.starts]
            unaware = [job for job in starting if job.outdated]
            if not unaware:
                break
            count *= 2
            to_update = [*unaware, *islice(outdated, count)]
        return plan, next(outdated, None) is not None

    def waits(self) -> dict[int, Reason]:
        """Return why the jobs of the last plan wait that run nothing, by id. Of very many that takes milliseconds."""
        aside = self.running.aside
        if self._explained or self.planner is None:
            return aside.explained(self.plan.waits)
        waits = self.planner.waits(self.clock.time(), self.running.views)
        return aside.explained({**waits, **self.plan.waits})

    def put_off(self, stage: RunningView) -> None:
        """Plan again in a moment, as somebody else has leased what a stage needs. Until then its job waits for that."""
        self._not_before = self.clock.monotonic() + _BUSY_PAUSE_S
        self.plan = replace(self.plan, waits={**self.plan.waits, stage.id.job: self.running.leased_by_others(stage)})


def _last_views(jobs: Iterable[QueuedJob], busy: Collection[int]) -> dict[int, JobView]:
    """Return the last view of each job that has not come to its end, by id."""
    views = dict[int, JobView]()
    for job in jobs:
        view = job.last_view()  # the first one finds out whether the job is over
        if not job.over or view.id in busy:
            views[view.id] = view
    return views


def _update(views: dict[int, JobView], jobs: Iterable[QueuedJob], busy: Collection[int]) -> None:
    """Bring the views of some jobs up to date, and drop those of jobs that turn out to be at their end."""
    for job in jobs:
        views[job.id] = job.view()
        if job.over and job.id not in busy:
            del views[job.id]
