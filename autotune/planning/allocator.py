"""Give free CPUs and devices to the ready stages that a policy picks (`policies/`)."""

from __future__ import annotations

from autotune.planning.planned_job import PlannedJob
from autotune.planning.planner_state import PlannerState
from autotune.planning.queues import ReadyStage
from autotune.planning.resources import Allocation, MachinePool
from autotune.planning.view import RunningView, Start


class Allocator:
    """Gives stages what they run on, and marks them as running in a planner's state.

    `late` are the jobs with a stage that the last call of `start_stages` did not start because it would have ended
    too late.
    """

    def __init__(self, state: PlannerState) -> None:
        self.late: frozenset[int] = frozenset()
        self._state = state
        self._policy = state.policy

    def start_stages(self, now: float, ends_by: float | None = None) -> list[Start]:
        """Choose stages until the resources or the ready stages are used up, or the policy picks none.

        Args:
            now: The time of the plan in epoch seconds.
            ends_by: Start no stage that is expected to end after this epoch second; None for no limit.

        Returns:
            The stages to start, in the order of the choice.
        """
        state = self._state
        starts = list[Start]()
        late = list[PlannedJob]()
        state.now = now
        state.refresh()
        while (chosen := self._choose()) is not None:
            ready, allocation = chosen
            if ends_by is not None and state.ends_at(ready) > ends_by:
                state.withdraw(ready)
                late.append(state.jobs[ready.job])
                continue
            starts.append(self._start(ready, allocation))
            state.refresh()
        for job in late:  # back into the queues at the next refresh
            state.put_job(job.view)
        self.late = frozenset(job.view.id for job in late)
        return starts

    def _choose(self) -> tuple[ReadyStage, Allocation] | None:
        """Return a stage and what it runs on."""
        if not self._policy.leases:
            return self._choose_overcommitted()
        state = self._state
        draining = self._draining()
        for kind in state.machine.kinds:
            queues = state.queues.get(kind)
            if queues and queues.queues["measure"].count:
                allocation = state.pool.for_measurement(kind, draining)
                ready = self._policy.pick_measurement(kind, state) if allocation else None
                if ready is not None and allocation is not None:
                    return ready, allocation
        ready = None
        pools = state.pool.with_free_cpus(draining, among=False)
        if pools:
            ready = self._policy.pick_cpu_stage(state)
        if ready is None and draining:
            pools = state.pool.with_free_cpus(draining, among=True)
            ready = self._policy.pick_while_draining(state) if pools else None
        allocation = state.pool.for_cpu_stage(pools) if ready else None
        return (ready, allocation) if ready and allocation else None

    def _choose_overcommitted(self) -> tuple[ReadyStage, Allocation] | None:
        state = self._state
        for kind in state.machine.kinds:
            ready = self._policy.pick_measurement(kind, state)
            if ready is not None:
                return ready, state.pool.overcommitted(kind, measures=True)
        ready = self._policy.pick_cpu_stage(state)
        return (ready, state.pool.overcommitted(ready.device, measures=False)) if ready else None

    def _draining(self) -> list[MachinePool]:
        """Return the machines on which to let the running stages end, to have all their CPUs for a measurement."""
        state = self._state
        draining = list[MachinePool]()
        for kind in state.machine.cpu_kinds:
            batches = state.queues_of(kind).ready_batches
            pools = state.pool.to_drain(kind) if batches else []
            if pools:
                enough = batches // (self._policy.gather_per_cpu * len(pools[0].machine.cpus))
                idle = enough < len(pools) and self._policy.pick_cpu_stage(state) is None
                draining += pools if idle else pools[:enough]
        return draining

    def _start(self, ready: ReadyStage, allocation: Allocation) -> Start:
        state = self._state
        stage = ready.stage
        # Only a policy that uses estimates may size batches by them: under the others, a seed must give the same plan
        # on any machine.
        by_estimates = self._policy.uses_estimates
        count = state.jobs[ready.job].batch(stage.id.task, by_estimates) if ready.queue == "begin" else 0
        start = Start(stage, allocation.cpus, count, allocation.device, self._policy.leases)
        state.stage_started(RunningView(stage.id, stage.kind, allocation.cpus, count, allocation.device, state.now))
        return start
