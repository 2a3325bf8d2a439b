"""Pair ready stages with free CPUs and devices, as the policy picks them."""

from __future__ import annotations

from autotune.planning.board import Board
from autotune.planning.planned_job import PlannedJob
from autotune.planning.queues import ReadyStage
from autotune.planning.resources import Allocation, MachinePool
from autotune.planning.view import RunningView, Start


class Scheduler:
    """Chooses stages to start, and marks them as running on a board.

    `late` are the jobs with a stage that the last call of `start_stages` did not start because it would have ended
    too late.
    """

    def __init__(self, board: Board) -> None:
        self.late: frozenset[int] = frozenset()
        self._board = board
        self._policy = board.policy

    def start_stages(self, now: float, ends_by: float | None = None) -> list[Start]:
        """Choose stages until the resources or the ready stages are used up, or the policy picks none.

        Args:
            now: The time of the plan in epoch seconds.
            ends_by: Start no stage that is expected to end after this epoch second; None for no limit.

        Returns:
            The stages to start, in the order of the choice.
        """
        board = self._board
        starts = list[Start]()
        late = list[PlannedJob]()
        board.now = now
        board.refresh()
        while (chosen := self._choose()) is not None:
            ready, allocation = chosen
            if ends_by is not None and board.ends_at(ready) > ends_by:
                board.withdraw(ready)
                late.append(board.jobs[ready.job])
                continue
            starts.append(self._start(ready, allocation))
            board.refresh()
        for job in late:  # back into the queues at the next refresh
            board.put_job(job.view)
        self.late = frozenset(job.view.id for job in late)
        return starts

    def _choose(self) -> tuple[ReadyStage, Allocation] | None:
        """Return a stage and what it runs on."""
        if not self._policy.leases:
            return self._choose_overcommitted()
        board = self._board
        draining = self._draining()
        for kind in board.machine.kinds:
            queues = board.queues.get(kind)
            if queues and queues.queues["measure"].count:
                allocation = board.pool.for_measurement(kind, draining)
                ready = self._policy.pick_measurement(kind, board) if allocation else None
                if ready is not None and allocation is not None:
                    return ready, allocation
        ready = None
        pools = board.pool.with_free_cpus(draining, among=False)
        if pools:
            ready = self._policy.pick_cpu_stage(board)
        if ready is None and draining:
            pools = board.pool.with_free_cpus(draining, among=True)
            ready = self._policy.pick_while_draining(board) if pools else None
        allocation = board.pool.for_cpu_stage(pools) if ready else None
        return (ready, allocation) if ready and allocation else None

    def _choose_overcommitted(self) -> tuple[ReadyStage, Allocation] | None:
        board = self._board
        for kind in board.machine.kinds:
            ready = self._policy.pick_measurement(kind, board)
            if ready is not None:
                return ready, board.pool.overcommitted(kind, measures=True)
        ready = self._policy.pick_cpu_stage(board)
        return (ready, board.pool.overcommitted(ready.device, measures=False)) if ready else None

    def _draining(self) -> list[MachinePool]:
        """Return the machines on which to let the running stages end, to have all their CPUs for a measurement."""
        board = self._board
        draining = list[MachinePool]()
        for kind in board.machine.cpu_kinds:
            batches = board.queues_of(kind).ready_batches
            pools = board.pool.to_drain(kind) if batches else []
            if pools:
                enough = batches // (self._policy.gather_per_cpu * len(pools[0].machine.cpus))
                idle = enough < len(pools) and self._policy.pick_cpu_stage(board) is None
                draining += pools if idle else pools[:enough]
        return draining

    def _start(self, ready: ReadyStage, allocation: Allocation) -> Start:
        board = self._board
        stage = ready.stage
        # Only a policy that uses estimates may size batches by them: under the others, a seed must give the same plan
        # on any machine.
        by_estimates = self._policy.uses_estimates
        count = board.jobs[ready.job].batch(stage.id.task, by_estimates) if ready.queue == "begin" else 0
        start = Start(stage, allocation.cpus, count, allocation.device, self._policy.leases)
        board.stage_started(RunningView(stage.id, stage.kind, allocation.cpus, count, allocation.device, board.now))
        return start
