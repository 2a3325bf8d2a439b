"""Pair ready stages with free CPUs and devices, as the policy picks them."""

from __future__ import annotations

from autotune.planning.board import Board
from autotune.planning.planned_job import PlannedJob
from autotune.planning.queues import ReadyStage
from autotune.planning.resources import Allocation
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
        board, starts, late = self._board, list[Start](), list[PlannedJob]()
        board.now = now
        board.refresh()
        while (chosen := self._choose()) is not None:
            ready, allocation = chosen
            if ends_by is not None and board.ends_at(ready) > ends_by:
                job = board.jobs[ready.job]
                board.queues_of(ready.device).queues[ready.queue].remove(job.queued.pop(ready.queue))
                late.append(job)
                continue
            starts.append(self._start(ready, allocation))
            board.refresh()
        for job in late:  # back into the queues at the next refresh
            board.put_job(job.view)
        self.late = frozenset(job.view.id for job in late)
        return starts

    def _choose(self) -> tuple[ReadyStage, Allocation] | None:
        if not self._policy.leases:
            return self._choose_overcommitted()
        board = self._board
        draining = self._draining()
        for kind in board.machine.kinds:
            queues = board.queues.get(kind)
            if queues and queues.queues["measure"].count and not (draining and kind != "cpu"):
                allocation = board.pool.for_measurement(kind)
                ready = self._policy.pick_measurement(kind, board) if allocation else None
                if ready is not None and allocation is not None:
                    return ready, allocation
        allocation = board.pool.for_cpu_stage()
        if allocation is None:
            return None
        ready = self._policy.pick_while_draining(board) if draining else self._policy.pick_cpu_stage(board)
        return (ready, allocation) if ready else None

    def _choose_overcommitted(self) -> tuple[ReadyStage, Allocation] | None:
        board = self._board
        for kind in board.machine.kinds:
            ready = self._policy.pick_measurement(kind, board)
            if ready is not None:
                return ready, board.pool.overcommitted(kind, measures=True)
        ready = self._policy.pick_cpu_stage(board)
        return (ready, board.pool.overcommitted(ready.device, measures=False)) if ready else None

    def _draining(self) -> bool:
        """Return whether to let the running stages end, so that the CPUs become free for a measurement on them."""
        machine, pool = self._board.machine, self._board.pool
        if "cpu" not in machine.kinds or not machine.drains or not pool.free_devices("cpu"):
            return False
        batches = self._board.queues_of("cpu").ready_batches
        if not batches:
            return False
        enough = batches >= self._policy.gather_per_cpu * len(machine.cpus)
        return enough or self._policy.pick_cpu_stage(self._board) is None

    def _start(self, ready: ReadyStage, allocation: Allocation) -> Start:
        board, stage = self._board, ready.stage
        # Only a policy that uses estimates may size batches by them: under the others, a seed must give the same plan
        # on any machine.
        by_estimates = self._policy.uses_estimates
        count = board.jobs[ready.job].batch(by_estimates) if ready.queue == "begin" else 0
        start = Start(stage, allocation.cpus, count, allocation.device, self._policy.leases)
        board.stage_started(RunningView(stage.id, stage.kind, allocation.cpus, count, allocation.device, board.now))
        return start
