"""The planner: from a picture of everything to the stages to start. Deterministic; no clock, no file, no process.

`plan` is a pure function. `Planner` gives the same answers, and between two of them keeps what has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.planning.board import Board
from autotune.planning.estimates import Estimates
from autotune.planning.offers import Offer
from autotune.planning.policy import Policy
from autotune.planning.resources import Grant
from autotune.planning.view import JobView, Machine, Plan, RunningView, Start
from autotune.planning.waiting import CPU, TASK, TURN, for_device, lacks
from autotune.planning.work import Work
from autotune.reasons import Reason


def plan(
    jobs: Sequence[JobView],
    running: Iterable[RunningView],
    machine: Machine,
    policy: Policy,
    estimates: Estimates | None = None,
    now: float = 0.0,
    closes_at: float | None = None,
) -> Plan:
    """Choose the stages to start now.

    Args:
        jobs: the active jobs.
        running: what workers have now; its CPUs and devices are taken.
        closes_at: no stage is started that is not expected to end by then.
    """
    return Planner(machine, policy, estimates).plan(jobs, list(running), now, closes_at)


class Planner:
    """Plans again and again for one machine under one policy.

    Either give `plan` the whole picture each time, of which it takes in the views that are new objects; or tell
    `board` of every change (`put`, `remove`, `begin`, `end`) and call `starts`.
    """

    def __init__(self, machine: Machine, policy: Policy, estimates: Estimates | None = None) -> None:
        self.board = Board(machine, policy, estimates)
        self._policy = policy
        self._closes_at: float | None = None
        self._late: frozenset[int] = frozenset()

    def plan(
        self, jobs: Sequence[JobView], running: Sequence[RunningView], now: float = 0.0, closes_at: float | None = None
    ) -> Plan:
        """As the function `plan`. What it starts counts as running only once `running` has it."""
        self._sync(jobs, running)
        starts = self.starts(now, closes_at)
        waits = self.waits()
        for start in starts:
            self.board.end(start.stage.id)
        return Plan(tuple(starts), waits, self._late)

    def _sync(self, jobs: Sequence[JobView], running: Sequence[RunningView]) -> None:
        board = self.board
        current = {item.id: item for item in running}
        for id in [id for id in board.running if id not in current]:
            board.end(id)
        for view in sorted(jobs, key=lambda job: job.id):
            work = board.works.get(view.id)
            if work is None or work.view is not view:
                board.put(view)
        wanted = {view.id for view in jobs}
        for job in [job for job in board.works if job not in wanted]:
            board.remove(job)
        for id, item in current.items():
            if id not in board.running:
                board.begin(item)

    def starts(self, now: float = 0.0, closes_at: float | None = None) -> list[Start]:
        """Choose stages and mark them as running."""
        board, found = self.board, list[Start]()
        board.now, self._closes_at = now, closes_at
        late: list[Work] = []
        board.refresh()
        while (chosen := self._choose()) is not None:
            offer, grant = chosen
            if self._too_long(offer):
                work = board.works[offer.job]
                board.lane(offer.device).steps[offer.step].drop(work.offers.pop(offer.step))
                late.append(work)
                continue
            found.append(self._start(offer, grant))
            board.refresh()
        for work in late:
            board.put(work.view)
        self._late = frozenset(work.view.id for work in late)
        return found

    def _choose(self) -> tuple[Offer, Grant] | None:
        if not self._policy.leases:
            return self._unleased()
        draining = self._draining()
        for kind in self.board.machine.kinds:
            if self.board.waiting("measure", kind) and not (draining and kind != "cpu"):
                grant = self.board.pool.measuring(kind)
                offer = self._policy.measure(kind, self.board) if grant else None
                if offer is not None and grant is not None:
                    return offer, grant
        grant = self.board.pool.preparing()
        if grant is None:
            return None
        offer = self._policy.fill(self.board) if draining else self._policy.prepare(self.board)
        return (offer, grant) if offer else None

    def _unleased(self) -> tuple[Offer, Grant] | None:
        kinds = self.board.machine.kinds
        for kind in kinds:
            offer = self._policy.measure(kind, self.board)
            if offer is not None:
                return offer, self.board.pool.overcommitted(kind, True)
        offer = self._policy.prepare(self.board)
        return (offer, self.board.pool.overcommitted(offer.device, False)) if offer else None

    def _draining(self) -> bool:
        """Whether to start nothing, so that the CPUs become free for the measurements gathered."""
        machine, pool = self.board.machine, self.board.pool
        if "cpu" not in machine.kinds or not machine.drains or not pool.free_devices("cpu"):
            return False
        gathered = self.board.lane("cpu").gathered
        if not gathered:
            return False
        enough = gathered >= self._policy.gather_per_cpu * len(machine.cpus)
        return enough or self._policy.prepare(self.board) is None

    def _too_long(self, offer: Offer) -> bool:
        return self._closes_at is not None and self.board.ends_at(offer) > self._closes_at

    def _start(self, offer: Offer, grant: Grant) -> Start:
        board, stage = self.board, offer.stage
        # Only a policy that goes by times may let them decide: under the others a seed gives one plan on any machine.
        estimates = board.estimates if self._policy.forecasts else None
        count = board.works[offer.job].batch(estimates) if offer.step == "begin" else 0
        start = Start(stage, grant.cpus, count, grant.device, self._policy.leases)
        board.begin(RunningView(stage.id, stage.kind, grant.cpus, count, grant.device, board.now))
        return start

    def waits(self) -> dict[int, Reason]:
        """Of every job that runs nothing, what it waits for."""
        return {id: self._why(work) for id, work in sorted(self.board.works.items()) if not work.running}

    def _why(self, work: Work) -> Reason:
        """Kept while the job has something to offer: whatever changes the reason then changes the offer as well."""
        reason = work.reason or self._reason(work)
        work.reason = reason if work.offers else None
        return reason

    def _reason(self, work: Work) -> Reason:
        found = work.searches(self._policy.rounds_per_task)
        blocked = bool(found) and not any(self.board.is_free(work, stage) for stage in found)
        if work.next_proceed() is not None:
            return CPU
        if work.view.device not in self.board.machine.kinds and (work.gathered or blocked):
            return lacks(work.view.device)
        if work.gathered:
            return for_device(work.view.device)
        return TASK if blocked else TURN
