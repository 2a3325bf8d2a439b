"""The planner's state between two plans, updated by what has changed.

Only this package changes or reads it. A policy sees it as a `policy.PlannerView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from enum import IntEnum

from autotune.planning.estimates import Estimates, RemainingWork
from autotune.planning.planned_job import PlannedJob
from autotune.planning.policy import Policy
from autotune.planning.queues import DeviceQueues, QueueName, Rank, ReadyStage
from autotune.planning.resources import ResourcePool
from autotune.planning.view import ON_DEVICE, JobView, Kind, MachineResources, RunningView, StageId, StageView, TaskView


class _Part(IntEnum):
    """What of a job may have changed. Each includes those before it."""

    CLAIMS = 0  # which of its tasks others work on
    STAGES = 1  # its running and ready stages
    REMAINING = 2  # its remaining work


class PlannerState:
    """Jobs, running stages, ready stages and free resources.

    Report changes with `put_job`, `remove_job`, `stage_started` and `stage_ended`, and call `refresh` before reading.

    Attributes:
        now: The time of the plan in epoch seconds.
        pool: The free CPUs and devices.
        jobs: The jobs by id.
        queues: The ready stages by kind of device, with the sums of remaining work.
        totals: The same by the name that policies use, who see the sums alone.
        running: The running stages by id, also those of jobs that are gone.
    """

    def __init__(self, machine: MachineResources, policy: Policy, estimates: Estimates | None = None) -> None:
        self.machine = machine
        self.policy = policy
        self.estimates = estimates or Estimates()
        self.now = 0.0
        self.pool = ResourcePool(machine)
        self.jobs: dict[int, PlannedJob] = {}
        self.queues: dict[str, DeviceQueues] = {}
        self.running: dict[StageId, RunningView] = {}
        self._claims = TaskClaims()
        self._jobs_with: dict[str, set[int]] = {}  # the ids of the jobs that have a task, by the key of its log
        # Jobs to look at again, and what of them may have changed.
        self._stale: dict[int, _Part] = {}
        self._rounds_begun = 0
        self._orphans = 0  # running stages whose job is not in it

    def put_job(self, view: JobView) -> None:
        """Take in a job that is new or has changed."""
        job = self.jobs.get(view.id)
        if job is None:
            job = self.jobs[view.id] = PlannedJob(view, self.estimates, self.policy.round_seconds)
            for id, stage in self.running.items():
                if id.job == view.id:
                    job.running[id] = stage
                    self._orphans -= 1
            self._note_tasks(view.id, (), view.tasks)
        else:
            self._note_tasks(view.id, job.view.tasks, view.tasks)
            job.view = view
        self._stale[view.id] = _Part.REMAINING

    def remove_job(self, id: int) -> None:
        """Forget a job. Its running stages keep their CPUs and devices until they end."""
        job = self.jobs.get(id)
        if job is not None:
            self._note_tasks(id, job.view.tasks, ())
            # With nothing left to do, it is cleared from the queues and sums.
            job.view = replace(job.view, tasks=(), stages=(), trials=0)
            self._orphans += len(job.running)
            job.running = {}
            self._update(job, _Part.REMAINING)
            del self.jobs[id]
            self._stale.pop(id, None)

    def _note_tasks(self, id: int, before: Sequence[TaskView], after: Sequence[TaskView]) -> None:
        """Take note of which tasks a job has. One that was the only job with a task may have to be looked at again."""
        keys = {task.key for task in after}
        old = {task.key for task in before}
        for key in old - keys:
            self._jobs_with[key].discard(id)
            if not self._jobs_with[key]:
                del self._jobs_with[key]
        for key in keys - old:
            jobs = self._jobs_with.setdefault(key, set())
            if len(jobs) == 1:
                self._stale.setdefault(next(iter(jobs)), _Part.CLAIMS)
            jobs.add(id)

    def stage_started(self, stage: RunningView) -> None:
        """Take a stage's resources and count it as running."""
        job = self.jobs.get(stage.id.job)
        if stage.kind in ON_DEVICE and not stage.device and job is not None and job.view.device in self.machine.kinds:
            stage = replace(stage, device=self.pool.overcommitted(job.view.device, measures=True).device)
        self.running[stage.id] = stage
        self.pool.take(stage.cpus, stage.device)
        if job is None:
            self._orphans += 1
        else:
            job.running[stage.id] = stage
            # The remaining work of a job depends on which of its searches run, not on its other stages.
            part = _Part.REMAINING if stage.kind == "search" else _Part.STAGES
            self._stale[stage.id.job] = max(part, self._stale.get(stage.id.job, part))

    def stage_ended(self, id: StageId) -> None:
        """Give back the resources of a running stage."""
        stage = self.running.pop(id)
        self.pool.give_back(stage.cpus, stage.device)
        job = self.jobs.get(id.job)
        if job is None:
            self._orphans -= 1
        else:
            del job.running[id]
            self._stale[id.job] = _Part.REMAINING

    @property
    def stages_running(self) -> int:
        """How many stages run."""
        return len(self.running)

    @property
    def rounds_begun(self) -> int:
        """How many rounds are in flight, without those that wait for a device which the machine lacks."""
        return self._rounds_begun + self._orphans

    def queues_of(self, kind: str) -> DeviceQueues:
        """Return the queues of a kind of device."""
        queues = self.queues.get(kind)
        if queues is None:
            devices = len(self.machine.kinds.get(kind, ()))
            queues = self.queues[kind] = DeviceQueues(kind, devices, self.policy.orders, self._claims.is_claimed)
        return queues

    def first(self, queue: QueueName, kinds: Iterable[str] | None = None, order: int = 0) -> ReadyStage | None:
        """Return the ready stage of the lowest rank; see `PlannerView.first`."""
        best: ReadyStage | None = None
        for kind in self.queues if kinds is None else kinds:
            of_kind = self.queues.get(kind)
            ready = of_kind.first(queue, order) if of_kind else None
            if ready is not None and (best is None or ready.ranks[order] < best.ranks[order]):
                best = ready
        return best

    def seconds(self, kind: Kind, device: str, candidates: int) -> float:
        """Return how many seconds a stage takes on average over all jobs that measure on a kind of device."""
        return self.estimates.seconds(kind, device, (), candidates)

    def ends_at(self, ready: ReadyStage) -> float:
        """Return the epoch second at which a stage is expected to end if it starts now."""
        job = self.jobs[ready.job]
        stage = ready.stage
        return self.now + job.seconds(stage.kind, stage.candidates or job.view.trials_per_round, stage.id.task)

    def busy_until(self) -> float:
        """Return the epoch second at which the last running stage is expected to end; `now` if none runs."""
        ends = [self.now]
        for stage in self.running.values():
            job = self.jobs.get(stage.id.job)
            if job is not None:
                candidates = stage.count or job.view.trials_per_round
                ends.append(stage.started_at + job.seconds(stage.kind, candidates, stage.id.task))
        return max(ends)

    def is_free(self, job: PlannedJob, stage: StageView) -> bool:
        """Return whether no other task works on the tuning log of a stage of the job."""
        return self._claims.is_free(job.key_of(stage), job.view.id, stage.id.task)

    def shared_are_claimed(self, job: PlannedJob) -> bool:
        """Return whether others work on the logs of all searches of a job that are queued with those of other jobs."""
        return all(self._claims.is_claimed(key) for key, _ in job.shared)

    def withdraw(self, ready: ReadyStage) -> None:
        """Take the stages of a job out of the queue of one of them, until the job is looked at again."""
        job = self.jobs[ready.job]
        self._queue(job, ready.queue, None)
        if ready.queue == "begin":
            self._queue_shared(job, [])

    def refresh(self) -> None:
        """Update the queues by the jobs that have changed."""
        while self._stale:
            id = next(iter(self._stale))
            job = self.jobs[id]
            part = self._stale.pop(id)
            if part == _Part.CLAIMS:
                job.reason = None
                self._queue_searches(job)
            else:
                self._update(job, part)

    def _update(self, job: PlannedJob, part: _Part) -> None:
        claims = job.claims
        begun = job.rounds_begun
        batches = job.ready_batches
        job.update(job.view.device in self.machine.kinds)
        job.reason = None
        self.queues_of(job.view.device).ready_batches += job.ready_batches - batches
        self._rounds_begun += job.rounds_begun - begun
        if job.claims != claims:
            self._change_claims(job, claims)
        if self.policy.uses_estimates and part == _Part.REMAINING:
            self._update_remaining(job)
        self._queue(job, "measure", job.next_measurement())
        self._queue(job, "continue", job.next_continuation())
        self._queue_searches(job)

    def _change_claims(self, job: PlannedJob, before: Mapping[str, set[int]]) -> None:
        for other in self._claims.change(job.view.id, before, job.claims):
            self._stale.setdefault(other, _Part.CLAIMS)
        for key in before.keys() - job.claims.keys():
            if not self._claims.is_claimed(key):
                for queues in self.queues.values():
                    queues.shared.freed(key)

    def _update_remaining(self, job: PlannedJob) -> None:
        before = job.remaining
        after = RemainingWork()
        if job.view.tasks:
            after = job.estimate_remaining(self.machine, self.policy.rounds_per_task)
        job.remaining = after
        queues = self.queues_of(job.view.device)
        queues.cpu_ms += after.cpu_ms - before.cpu_ms
        queues.device_ms += after.device_ms - before.device_ms
        queues.ready_ms += after.ready_ms - before.ready_ms
        queues.begun_ms += after.begun_ms - before.begun_ms

    def _queue(self, job: PlannedJob, queue: QueueName, stage: StageView | None) -> None:
        """Make a stage the job's only one in a queue; None leaves it without one."""
        before = job.queued.get(queue)
        ranks = self._ranks(job, queue, stage) if stage else ()
        if before is not None:
            if stage is not None and before.stage == stage and before.ranks == ranks:
                return
            self.queues_of(before.device).queues[queue].remove(before)
            del job.queued[queue]
        if stage is not None:
            ready = job.queued[queue] = ReadyStage(job.view.id, job.view.device, queue, stage, ranks)
            self.queues_of(ready.device).queues[queue].add(ready)

    def _queue_shared(self, job: PlannedJob, searches: Sequence[StageView]) -> None:
        """Make searches the job's only ones in the queues of tasks that several jobs have."""
        for key, ready in job.shared:
            self.queues_of(ready.device).shared.remove(key, ready)
        job.shared = []
        for stage in searches:
            ranks = self._ranks(job, "begin", stage)
            ready = ReadyStage(job.view.id, job.view.device, "begin", stage, ranks)
            job.shared.append((job.key_of(stage), ready))
            self.queues_of(ready.device).shared.add(*job.shared[-1])

    def _ranks(self, job: PlannedJob, queue: QueueName, stage: StageView) -> tuple[Rank, ...]:
        ranks = self.policy.ranks(job, stage, queue, self.machine)
        if queue != "begin":
            return ranks
        among_its_own = _search_order(job, stage.id.task)
        return tuple((*rank, *among_its_own) for rank in ranks)

    def _queue_searches(self, job: PlannedJob) -> None:
        """Queue what a job would search next: of the free tasks, that with the most expected gain per second.

        A job with rounds in flight, of which there are few, hears of every claim on a task that it could search. The
        other jobs, of which there may be many, have all searches of tasks that others have, too, in the shared queues,
        and of their own tasks the best one.
        """
        limit = self.policy.rounds_per_job
        searches = list[StageView]()
        if (limit is None or sum(job.task_rounds.values()) < limit) and job.batch() > 0:
            searches = job.open_searches(self.policy.rounds_per_task)
        if job.task_rounds:
            free = [stage for stage in searches if self.is_free(job, stage)]
            shared = []
        else:
            shared = [stage for stage in searches if len(self._jobs_with[job.key_of(stage)]) > 1]
            free = [stage for stage in searches if stage not in shared]
        best = min(free, key=lambda stage: _search_order(job, stage.id.task), default=None)
        claimed = [stage for stage in searches if stage not in free] if job.task_rounds else []
        self._watch(job, {job.key_of(stage) for stage in (*claimed, *([best] if best else []))})
        self._queue(job, "begin", best)
        self._queue_shared(job, shared)

    def _watch(self, job: PlannedJob, keys: set[str]) -> None:
        self._claims.watch(job.view.id, job.watched, keys)
        job.watched = keys


class TaskClaims:
    """Which task of which job works on a tuning log, so that no two rounds of different tasks do at once.

    Claims go by the key of the log. Jobs that watch a key are looked at again when a claim on it changes.
    """

    def __init__(self) -> None:
        self._holders: dict[str, set[tuple[int, int]]] = {}
        self._watchers: dict[str, set[int]] = {}

    def change(self, job: int, before: Mapping[str, set[int]], after: Mapping[str, set[int]]) -> list[int]:
        """Replace the claims of a job.

        Args:
            job: The id of the job.
            before: Its claims until now: the indices of its tasks by key.
            after: Its claims from now on.

        Returns:
            The ids of the other jobs that watch one of the keys.
        """
        affected: list[int] = []
        for key in before.keys() | after.keys():
            holders = self._holders.setdefault(key, set())
            holders -= {(job, task) for task in before.get(key, ())}
            holders |= {(job, task) for task in after.get(key, ())}
            if not holders:
                del self._holders[key]
            affected += sorted(self._watchers.get(key, ()))
        return [other for other in affected if other != job]

    def watch(self, job: int, before: Set[str], after: Set[str]) -> None:
        """Replace the keys that a job watches."""
        for key in before - after:
            self._watchers[key].discard(job)
            if not self._watchers[key]:
                del self._watchers[key]
        for key in after - before:
            self._watchers.setdefault(key, set()).add(job)

    def is_claimed(self, key: str) -> bool:
        """Return whether a task has a claim on a key."""
        return key in self._holders

    def is_free(self, key: str, job: int, task: int) -> bool:
        """Return whether no task but this one has a claim on a key."""
        holders = self._holders.get(key)
        return not holders or holders == {(job, task)}


def _search_order(job: PlannedJob, task: int) -> tuple[float, float, int, int]:
    """Order the searches of a job, the first to start first.

    A task without a round in flight goes first, because a second round knows less than a first round of another task.
    Then decides the gain. Tasks that never ran well promise most; of them the one with the fewest trials goes first,
    so that each is tried before one gets more.
    """
    return job.task_rounds.get(task, 0), -job.gain_per_second(task), len(job.view.tasks[task].running_best), task
