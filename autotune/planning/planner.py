"""The planner: from a picture of jobs, running stages and the machine to the stages to start, and to a forecast.

It is deterministic and knows no clock, no file and no process. `plan` is a pure function. A `Planner` gives the same
answers, and keeps between two plans what has not changed.

The forecast, when jobs will end, is no simulation. A job ends when its own work is done, and that of the jobs which get
the same resources before it or share them with it, over the number of these resources; and no sooner than its longest
chain of stages. Time lost between stages is not counted: CPUs that drain for a measurement, workers that load, leases
of other processes. It makes jobs end later than the forecast. Tasks that converge before the budget is used make jobs
end sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress, groupby
from operator import is_not

from autotune.planning.allocator import Allocator
from autotune.planning.estimates import Estimates
from autotune.planning.planned_job import PlannedJob
from autotune.planning.planner_state import PlannerState
from autotune.planning.policy import AGING_S, STAGE_ORDER, Policy, turn
from autotune.planning.view import JobView, MachineResources, RunningView, StageId, StagePlan, measures_on_cpus
from autotune.reasons import Reason

# Reasons why the planner starts no stage of a job: of thousands of jobs few different ones, so each is made once.
TURN = Reason("turn")
CPU = Reason("cpu")
TASK = Reason("task")
# Jobs whose turns are this close share the machine under a policy that uses estimates, as under `predictive`.
_SAME_TURN_S = AGING_S / 8


def plan(
    jobs: Sequence[JobView],
    running: Iterable[RunningView],
    machine: MachineResources,
    policy: Policy,
    estimates: Estimates | None = None,
    now: float = 0.0,
    closes_at: float | None = None,
) -> StagePlan:
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
        self._state = PlannerState(machine, policy, estimates)
        self._allocator = Allocator(self._state)
        self._policy = policy
        self._last: tuple[JobView, ...] = ()

    @property
    def machine(self) -> MachineResources:
        """The machine that this planner plans for."""
        return self._state.machine

    @property
    def jobs(self) -> frozenset[int]:
        """The ids of the jobs of the last plan."""
        return frozenset(self._state.jobs)

    def plan(
        self, jobs: Sequence[JobView], running: Sequence[RunningView], now: float = 0.0, closes_at: float | None = None
    ) -> StagePlan:
        """Choose the stages to start now, and say why the other jobs wait; see the function `plan`.

        A view that is the same object as in the last plan counts as unchanged. The stages that a plan starts count as
        running only once `running` has them.
        """
        return self._plan(jobs, running, now, closes_at, self._waits)

    def choose(
        self, jobs: Sequence[JobView], running: Sequence[RunningView], now: float = 0.0, closes_at: float | None = None
    ) -> StagePlan:
        """Choose the stages to start now, as `plan` does. The plan does not say why jobs wait, which `waits` does."""
        return self._plan(jobs, running, now, closes_at, dict)

    def _plan(
        self,
        jobs: Sequence[JobView],
        running: Sequence[RunningView],
        now: float,
        closes_at: float | None,
        waits_of: Callable[[], dict[int, Reason]],
    ) -> StagePlan:
        self._take_in(jobs, running)
        starts = self._allocator.start_stages(now, closes_at)
        waits = waits_of()
        for start in starts:
            self._state.stage_ended(start.stage.id)
        return StagePlan(tuple(starts), waits, self._allocator.late)

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
        return forecast(self._state)

    def _catch_up(self, now: float, running: Iterable[RunningView]) -> None:
        """Count the stages that the last plan started as running."""
        self._state.now = now
        for stage in running:
            if stage.id not in self._state.running:
                self._state.stage_started(stage)
        self._state.refresh()

    def _take_in(self, jobs: Sequence[JobView], running: Sequence[RunningView]) -> None:
        """Update the planner's state by what differs from the last plan."""
        state = self._state
        current = {stage.id: stage for stage in running}
        for id in [id for id in state.running if id not in current]:
            state.stage_ended(id)
        for view in sorted(self._changed(jobs), key=lambda view: view.id):
            state.put_job(view)
        if len(state.jobs) > len(jobs):
            active = {view.id for view in jobs}
            for gone in [id for id in state.jobs if id not in active]:
                state.remove_job(gone)
        for id, stage in current.items():
            if id not in state.running:
                state.stage_started(stage)

    def _changed(self, jobs: Sequence[JobView]) -> list[JobView]:
        """Return the views that the state does not have. Most of thousands stand where they stood in the last plan."""
        last = self._last
        self._last = tuple(jobs)
        moved: Iterable[JobView] = compress(jobs, map(is_not, jobs, last)) if len(jobs) == len(last) else jobs
        planned = self._state.jobs
        return [view for view in moved if (job := planned.get(view.id)) is None or job.view is not view]

    def _waits(self) -> dict[int, Reason]:
        """Return for every job that runs nothing what it waits for."""
        return {id: self._why(job) for id, job in sorted(self._state.jobs.items()) if not job.running}

    def _why(self, job: PlannedJob) -> Reason:
        """Return the reason, which is kept while the job has a ready stage of its own or waits for a task."""
        if job.shared and not job.queued:
            return self._blocked(job) if self._state.shared_are_claimed(job) else TURN
        reason = job.reason or self._reason(job)
        job.reason = reason if job.queued or job.watched else None
        return reason

    def _reason(self, job: PlannedJob) -> Reason:
        if job.next_continuation() is not None:
            return CPU
        has_device = job.view.device in self._state.machine.kinds
        if job.ready_batches:
            return _for_device(job.view.device) if has_device else self._lacking_device(job)
        searches = job.open_searches(self._policy.rounds_per_task)
        blocked = bool(searches) and not any(self._state.is_free(job, stage) for stage in searches)
        return self._blocked(job) if blocked else TURN

    def _blocked(self, job: PlannedJob) -> Reason:
        """Return the reason of a job whose tasks others work on."""
        return TASK if job.view.device in self._state.machine.kinds else self._lacking_device(job)

    def _lacking_device(self, job: PlannedJob) -> Reason:
        """Return the reason of a job for a kind of device that is not there."""
        return _lacking(job.view.device, nodes=bool(self._state.machine.nodes))


@cache
def _for_device(kind: str) -> Reason:
    """Return the reason of a job with a batch to measure while all devices of its kind are busy."""
    return Reason("device", device=kind)


@cache
def _lacking(kind: str, *, nodes: bool = False) -> Reason:
    """Return the reason of a job for a kind of device that the machine does not have, or none of the nodes has."""
    return Reason("no-device-on-nodes" if nodes else "no-device", device=kind)


@dataclass(frozen=True)
class _SecondsLeft:
    """What a job still needs, in seconds."""

    job: int
    device: str
    turn: tuple[float, int]  # its place in the order of jobs
    cpu_s: float  # CPU time
    device_s: float  # time on its device
    serial_s: float  # the sum of its stages, one after another
    chain_s: float  # its longest chain of stages


def forecast(state: PlannerState) -> dict[int, float]:
    """Return in how many seconds each job of a planner's state is expected to end.

    Jobs that need a device which the machine lacks have no end and are left out.
    """
    jobs = [job for job in state.jobs.values() if job.view.device in state.machine.kinds]
    ends: dict[int, float] = {}
    before: dict[str, float] = defaultdict(float)  # seconds of each resource that earlier groups need
    for group in _groups([_seconds_left(job, state) for job in jobs], state.policy):
        ends |= _ends(group, before, state)
        for job in group:
            before["cpu"] += job.cpu_s
            before["serial"] += job.serial_s
            before[f"device {job.device}"] += job.device_s
    return ends


def _groups(jobs: Sequence[_SecondsLeft], policy: Policy) -> list[list[_SecondsLeft]]:
    """Return groups of jobs that share the resources equally, in the order in which the groups are served."""

    def place(job: _SecondsLeft) -> tuple[float, int]:
        if not policy.leases:
            return 0.0, 0
        return (job.turn[0] // _SAME_TURN_S, 0) if policy.uses_estimates else job.turn

    return [list(group) for _, group in groupby(sorted(jobs, key=place), place)]


def _ends(group: list[_SecondsLeft], before: dict[str, float], state: PlannerState) -> dict[int, float]:
    if state.policy.leases and state.policy.rounds_per_job == 1:  # one stage at a time
        serial = _shared([job.serial_s for job in group])
        return {job.job: before["serial"] + serial_s for job, serial_s in zip(group, serial, strict=True)}
    cpu = _shared([job.cpu_s for job in group])
    ends = {
        job.job: max((before["cpu"] + cpu_s) / len(state.machine.cpus), job.chain_s)
        for job, cpu_s in zip(group, cpu, strict=True)
    }
    for kind, names in state.machine.kinds.items():
        users = [job for job in group if job.device == kind]
        for job, device_s in zip(users, _shared([job.device_s for job in users]), strict=True):
            ends[job.job] = max(ends[job.job], (before[f"device {kind}"] + device_s) / len(names))
    return ends


def _shared(needs: Sequence[float]) -> list[float]:
    """Return when each of several needs is met if one resource serves all of them at equal rates."""
    met = [0.0] * len(needs)
    served = 0.0
    spent = 0.0
    order = sorted(range(len(needs)), key=lambda index: needs[index])
    for place, index in enumerate(order):
        spent += (needs[index] - served) * (len(needs) - place)
        served = needs[index]
        met[index] = spent
    return met


def _seconds_left(job: PlannedJob, state: PlannerState) -> _SecondsLeft:
    remaining = job.estimate_remaining(state.machine, state.policy.rounds_per_task)
    done = dict.fromkeys(STAGE_ORDER, 0.0)
    for stage in job.running.values():
        expected = job.seconds(stage.kind, stage.count or _candidates(job.view, stage.id), stage.id.task)
        done[stage.kind] += min(expected, max(0.0, state.now - stage.started_at))
    # A measurement on the CPU takes all CPUs of a machine.
    drains = measures_on_cpus(job.view.device) and state.machine.drains
    more_cpus = len(state.machine.cpu_device) - 1 if drains else 0
    cpu_s = remaining.cpu_ms / 1000
    device_s = remaining.device_ms / 1000
    passed = sum(done.values())
    serial_s = max(0.0, cpu_s - more_cpus * device_s - passed)
    chain_s = max(0.0, remaining.chain_ms / 1000 - max(done.values()))
    return _SecondsLeft(
        job.view.id,
        job.view.device,
        turn(job.view),
        cpu_s=max(0.0, cpu_s - passed - more_cpus * done["measure"]),
        device_s=max(0.0, device_s - done["measure"]),
        serial_s=serial_s,
        chain_s=serial_s if state.policy.rounds_per_job == 1 else chain_s,
    )


def _candidates(view: JobView, id: StageId) -> int:
    """Return the size of a stage's batch."""
    return next((stage.candidates for stage in view.stages if stage.id == id), 0) or view.trials_per_round
