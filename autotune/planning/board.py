"""Everything the planner keeps between two plans, brought up to date by what has changed."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.planning.estimates import Estimates
from autotune.planning.offers import Lane, Offer, Step
from autotune.planning.policy import Policy
from autotune.planning.resources import Pool
from autotune.planning.view import JobView, Machine, RunningView, StageId, StageView
from autotune.planning.work import Forecast, Work


class Board:
    """Jobs, what runs, what could start, and what is free."""

    def __init__(self, machine: Machine, policy: Policy, estimates: Estimates | None = None) -> None:
        self.machine = machine
        self.policy = policy
        self.estimates = estimates or Estimates()
        self.now = 0.0
        self.pool = Pool(machine)
        self.works: dict[int, Work] = {}
        self.lanes: dict[str, Lane] = {}
        self.running: dict[StageId, RunningView] = {}
        self.begun = 0
        self._holders: dict[str, set[tuple[int, int]]] = {}
        self._watchers: dict[str, set[int]] = {}
        self._stale: dict[int, bool] = {}
        self._orphans = 0

    def put(self, view: JobView) -> None:
        """Take in a job that is new or has changed."""
        work = self.works.get(view.id)
        if work is None:
            work = self.works[view.id] = Work(view)
            for id, item in self.running.items():
                if id.job == view.id:
                    work.running[id] = item
                    self._orphans -= 1
        else:
            work.view = view
        self._stale[view.id] = True

    def remove(self, job: int) -> None:
        """Forget a job; what still runs of it keeps its CPUs until it ends."""
        work = self.works.get(job)
        if work is not None:
            work.view = _emptied(work.view)
            self._orphans += len(work.running)
            work.running = {}
            self._renew(work)
            del self.works[job]
            self._stale.pop(job, None)

    def begin(self, item: RunningView) -> None:
        """A stage runs now."""
        work = self.works.get(item.id.job)
        if item.kind == "measure" and not item.device and work is not None:
            item = RunningView(item.id, item.kind, item.cpus, item.count, self._any_device(work), item.started_at)
        self.running[item.id] = item
        self.pool.take(item.cpus, item.device)
        if work is None:
            self._orphans += 1
        else:
            work.running[item.id] = item
            # What is left of a job does not depend on which of its stages run, but for searches.
            self._stale[item.id.job] = self._stale.get(item.id.job, False) or item.kind == "search"

    def _any_device(self, work: Work) -> str:
        grant = self.pool.overcommitted(work.view.device, True) if work.view.device in self.machine.kinds else None
        return grant.device if grant else ""

    def end(self, id: StageId) -> None:
        """A stage runs no more."""
        item = self.running.pop(id)
        self.pool.give(item.cpus, item.device)
        work = self.works.get(id.job)
        if work is None:
            self._orphans -= 1
        else:
            del work.running[id]
            self._stale[id.job] = True

    @property
    def rounds_begun(self) -> int:
        """Rounds that take part in the flow of stages, and not only wait for a device that is not there."""
        return self.begun + self._orphans

    def lane(self, kind: str) -> Lane:
        lane = self.lanes.get(kind)
        if lane is None:
            lane = self.lanes[kind] = Lane(kind, self.policy.orders)
        return lane

    def top(self, step: Step, kinds: Iterable[str] | None = None, order: int = 0) -> Offer | None:
        """The offer of least rank of a step, of jobs for these kinds of devices; by default, for any."""
        best: Offer | None = None
        for kind in self.lanes if kinds is None else kinds:
            lane = self.lanes.get(kind)
            offer = lane.steps[step].top(order) if lane else None
            if offer is not None and (best is None or offer.ranks[order] < best.ranks[order]):
                best = offer
        return best

    def waiting(self, step: Step, kind: str) -> int:
        """How many jobs offer a stage of this step for a kind of device."""
        lane = self.lanes.get(kind)
        return lane.steps[step].alive if lane else 0

    def ends_at(self, offer: Offer) -> float:
        """When a stage that starts now is expected to end."""
        work, stage = self.works[offer.job], offer.stage
        count = stage.candidates or work.view.trials_per_round
        return self.now + work.seconds(stage.kind, self.estimates, count, stage.id.task)

    def busy_until(self) -> float:
        """When the last of the stages that run is expected to end."""
        ends = [self.now]
        for item in self.running.values():
            work = self.works.get(item.id.job)
            if work is not None:
                count = item.count or work.view.trials_per_round
                ends.append(item.started_at + work.seconds(item.kind, self.estimates, count, item.id.task))
        return max(ends)

    def refresh(self) -> None:
        """Work out anew what the jobs that have changed offer."""
        while self._stale:
            job = next(iter(self._stale))
            self._renew(self.works[job], self._stale.pop(job))

    def _renew(self, work: Work, left_changed: bool = True) -> None:
        before_held, before_begun, before_gathered = work.held, work.begun, work.gathered
        work.survey(work.view.device in self.machine.kinds)
        work.reason = None
        self.lane(work.view.device).gathered += work.gathered - before_gathered
        self.begun += work.begun - before_begun
        if work.held != before_held:
            self._hold(work, before_held)
        if self.policy.forecasts and left_changed:
            self._forecast(work)
        self._offer(work, "measure", work.next_measure())
        self._offer(work, "proceed", work.next_proceed())
        self._offer(work, "begin", self._next_search(work))

    def _hold(self, work: Work, before: dict[str, set[int]]) -> None:
        job = work.view.id
        for key in before.keys() | work.held.keys():
            holders = self._holders.setdefault(key, set())
            holders -= {(job, task) for task in before.get(key, ())}
            holders |= {(job, task) for task in work.held.get(key, ())}
            if not holders:
                del self._holders[key]
            for other in sorted(self._watchers.get(key, ())):
                if other != job:
                    self._stale.setdefault(other, False)

    def _forecast(self, work: Work) -> None:
        before = work.forecast
        if work.view.tasks:
            work.look_ahead(self.estimates, self.machine, self.policy.rounds_per_task)
        else:
            work.forecast = Forecast()
        lane, after = self.lane(work.view.device), work.forecast
        lane.cpu_ms += after.cpu_ms - before.cpu_ms
        lane.device_ms += after.device_ms - before.device_ms
        lane.supply_ms += after.supply_ms - before.supply_ms
        lane.begun_ms += after.begun_ms - before.begun_ms

    def _offer(self, work: Work, step: Step, stage: StageView | None) -> None:
        before = work.offers.get(step)
        ranks = self.policy.ranks(work, stage, step, self) if stage else ()
        if before is not None:
            if stage is not None and before.stage == stage and before.ranks == ranks:
                return
            self.lane(before.device).steps[step].drop(before)
            del work.offers[step]
        if stage is not None:
            offer = work.offers[step] = Offer(work.view.id, work.view.device, step, stage, ranks)
            self.lane(offer.device).steps[step].put(offer)

    def _next_search(self, work: Work) -> StageView | None:
        """The search that this job would begin: a task that no other job is at, most gain per second first."""
        limit = self.policy.rounds_per_job
        if (limit is not None and sum(work.rounds.values()) >= limit) or work.batch() <= 0:
            self._watch(work, set())
            return None
        found = work.searches(self.policy.rounds_per_task)
        free = [stage for stage in found if self.is_free(work, stage)]
        best = min(free, key=lambda stage: self._eagerness(work, stage), default=None)
        watched = [best] if best else []
        if len(free) < len(found):
            watched += [stage for stage in found if stage not in free]
        self._watch(work, {work.view.tasks[stage.id.task].key for stage in watched})
        return best

    def _watch(self, work: Work, keys: set[str]) -> None:
        """Have a job looked at again when another takes or leaves one of these tasks."""
        for key in work.watches - keys:
            self._watchers[key].discard(work.view.id)
            if not self._watchers[key]:
                del self._watchers[key]
        for key in keys - work.watches:
            self._watchers.setdefault(key, set()).add(work.view.id)
        work.watches = keys

    def is_free(self, work: Work, stage: StageView) -> bool:
        """Whether nobody else is at the task of this stage."""
        holders = self._holders.get(work.view.tasks[stage.id.task].key)
        return not holders or holders == {(work.view.id, stage.id.task)}

    def worth(self, work: Work, stage: StageView) -> float:
        """What the next round of a task is expected to gain for what it costs."""
        return work.worth(stage.id.task, lambda: self.policy.cost(work, stage, self))

    def _eagerness(self, work: Work, stage: StageView) -> tuple[float, float, int, int]:
        """Least first. Of tasks that never ran well, the one tried least: all are reached before one gets more.

        A second round of a task knows less than the first round of another would: it comes after.
        """
        task = stage.id.task
        return work.rounds.get(task, 0), -self.worth(work, stage), len(work.view.tasks[task].running_best), task


def _emptied(view: JobView) -> JobView:
    return JobView(view.id, view.device, (), (), 0, view.trials_per_round, view.patience, view.min_gain)
