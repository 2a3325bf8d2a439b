"""The planner: from a picture of jobs, running stages and the machine to the stages to start, and to a forecast.

It is deterministic and knows no clock, no file and no process. `plan` is a pure function. A `Planner` gives the same
answers, and keeps between two plans what has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import compress
from operator import is_not

from autotune.planning.board import Board
from autotune.planning.estimates import Estimates
from autotune.planning.forecast import forecast
from autotune.planning.planned_job import PlannedJob
from autotune.planning.policy import Policy
from autotune.planning.scheduler import Scheduler
from autotune.planning.view import JobView, MachineResources, Plan, RunningView
from autotune.reasons import Reason

# Reasons why the planner starts no stage of a job: of thousands of jobs few different ones, so each is made once.
TURN = Reason("turn")
CPU = Reason("cpu")
TASK = Reason("task")


def plan(
    jobs: Sequence[JobView],
    running: Iterable[RunningView],
    machine: MachineResources,
    policy: Policy,
    estimates: Estimates | None = None,
    now: float = 0.0,
    closes_at: float | None = None,
) -> Plan:
    """Choose the stages to start now.

    Args:
        jobs: The active jobs.
        running: The running stages. Their CPUs and devices are taken.
        machine: All CPUs and devices.
        policy: The rule by which stages are picked.
        estimates: How long stages take; by default priors.
        now: The time in epoch seconds.
        closes_at: Start no stage that is expected to end after this epoch second; None for no limit.
    """
    return Planner(machine, policy, estimates).plan(jobs, list(running), now, closes_at)


class Planner:
    """Plans again and again for one machine under one policy."""

    def __init__(self, machine: MachineResources, policy: Policy, estimates: Estimates | None = None) -> None:
        self._board = Board(machine, policy, estimates)
        self._scheduler = Scheduler(self._board)
        self._policy = policy
        self._last: tuple[JobView, ...] = ()

    @property
    def machine(self) -> MachineResources:
        """The machine that this planner plans for."""
        return self._board.machine

    @property
    def jobs(self) -> frozenset[int]:
        """The ids of the jobs of the last plan."""
        return frozenset(self._board.jobs)

    def plan(
        self, jobs: Sequence[JobView], running: Sequence[RunningView], now: float = 0.0, closes_at: float | None = None
    ) -> Plan:
        """Choose the stages to start now, and say why the other jobs wait; see the function `plan`.

        A view that is the same object as in the last plan counts as unchanged. The stages that a plan starts count as
        running only once `running` has them.
        """
        return self._plan(jobs, running, now, closes_at, self._waits)

    def choose(
        self, jobs: Sequence[JobView], running: Sequence[RunningView], now: float = 0.0, closes_at: float | None = None
    ) -> Plan:
        """Choose the stages to start now, as `plan` does. The plan does not say why jobs wait, which `waits` does."""
        return self._plan(jobs, running, now, closes_at, dict)

    def _plan(
        self,
        jobs: Sequence[JobView],
        running: Sequence[RunningView],
        now: float,
        closes_at: float | None,
        waits_of: Callable[[], dict[int, Reason]],
    ) -> Plan:
        self._take_in(jobs, running)
        starts = self._scheduler.start_stages(now, closes_at)
        waits = waits_of()
        for start in starts:
            self._board.stage_ended(start.stage.id)
        return Plan(tuple(starts), waits, self._scheduler.late)

    def waits(self, now: float, running: Iterable[RunningView]) -> dict[int, Reason]:
        """Return for every job of the last plan that runs nothing what it waits for; the arguments as of `forecast`."""
        self._catch_up(now, running)
        return self._waits()

    def forecast(self, now: float, running: Iterable[RunningView]) -> dict[int, float]:
        """Return in how many seconds each job of the last plan is expected to end.

        Args:
            now: The time in epoch seconds.
            running: The running stages, with those that the last plan started.

        Returns:
            Seconds from `now` by job id, without the jobs that need a device which the machine lacks.
        """
        self._catch_up(now, running)
        return forecast(self._board)

    def _catch_up(self, now: float, running: Iterable[RunningView]) -> None:
        """Count the stages that the last plan started as running."""
        self._board.now = now
        for stage in running:
            if stage.id not in self._board.running:
                self._board.stage_started(stage)
        self._board.refresh()

    def _take_in(self, jobs: Sequence[JobView], running: Sequence[RunningView]) -> None:
        """Update the board by what differs from the last plan."""
        board = self._board
        current = {stage.id: stage for stage in running}
        for id in [id for id in board.running if id not in current]:
            board.stage_ended(id)
        for view in sorted(self._changed(jobs), key=lambda view: view.id):
            board.put_job(view)
        if len(board.jobs) > len(jobs):
            active = {view.id for view in jobs}
            for gone in [id for id in board.jobs if id not in active]:
                board.remove_job(gone)
        for id, stage in current.items():
            if id not in board.running:
                board.stage_started(stage)

    def _changed(self, jobs: Sequence[JobView]) -> list[JobView]:
        """Return the views that the board does not have. Most of thousands stand where they stood in the last plan."""
        last = self._last
        self._last = tuple(jobs)
        moved: Iterable[JobView] = compress(jobs, map(is_not, jobs, last)) if len(jobs) == len(last) else jobs
        planned = self._board.jobs
        return [view for view in moved if (job := planned.get(view.id)) is None or job.view is not view]

    def _waits(self) -> dict[int, Reason]:
        """Return for every job that runs nothing what it waits for."""
        return {id: self._why(job) for id, job in sorted(self._board.jobs.items()) if not job.running}

    def _why(self, job: PlannedJob) -> Reason:
        """Return the reason, which is kept while the job has a ready stage of its own or waits for a task."""
        if job.shared and not job.queued:
            return self._blocked(job) if self._board.shared_are_claimed(job) else TURN
        reason = job.reason or self._reason(job)
        job.reason = reason if job.queued or job.watched else None
        return reason

    def _reason(self, job: PlannedJob) -> Reason:
        if job.next_continuation() is not None:
            return CPU
        has_device = job.view.device in self._board.machine.kinds
        if job.ready_batches:
            return _for_device(job.view.device) if has_device else self._lacking_device(job)
        searches = job.open_searches(self._policy.rounds_per_task)
        blocked = bool(searches) and not any(self._board.is_free(job, stage) for stage in searches)
        return self._blocked(job) if blocked else TURN

    def _blocked(self, job: PlannedJob) -> Reason:
        """Return the reason of a job whose tasks others work on."""
        return TASK if job.view.device in self._board.machine.kinds else self._lacking_device(job)

    def _lacking_device(self, job: PlannedJob) -> Reason:
        """Return the reason of a job for a kind of device that is not there."""
        return _lacking(job.view.device, nodes=bool(self._board.machine.nodes))


@cache
def _for_device(kind: str) -> Reason:
    """Return the reason of a job with a batch to measure while all devices of its kind are busy."""
    return Reason("device", device=kind)


@cache
def _lacking(kind: str, *, nodes: bool = False) -> Reason:
    """Return the reason of a job for a kind of device that the machine does not have, or none of the nodes has."""
    return Reason("no-device-on-nodes" if nodes else "no-device", device=kind)
