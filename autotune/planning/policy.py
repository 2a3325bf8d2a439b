"""What a policy is: the rule by which the planner picks the next stages.

A policy is one small file in `policies/`: a class below `Policy`, and its line in `policies.POLICIES`. It ranks what
jobs offer and picks among the offers of least rank; it never sees files, processes or clocks.

What the planner guarantees, whatever a policy says (but for one with `leases = False`, which shares everything):
- no CPU and no device is given to two stages, and a measurement on the `cpu` has all its CPUs to itself;
- two jobs never tune the same task (the same tuning log) at once;
- no job begins more trials than its budget has left;
- no more than `rounds_per_task` rounds of a task, and `rounds_per_job` rounds of a job, are on their way.

What a policy owes:
- `ranks` depends on the job alone, not on what others do: it is asked again only when the job has changed. Every rank
  ends with the job's id, so that no two offers tie;
- `measure` and `prepare` return an offer that the board has on top of one of its orders, or None to start nothing;
- when nothing runs and something is offered, it picks something, or the queue stands still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.planning.offers import Offer, Rank, Step
from autotune.planning.urgency import turn
from autotune.planning.view import StageView
from autotune.planning.work import ORDER, Work

if TYPE_CHECKING:
    from autotune.planning.board import Board


class Policy:
    """Jobs by their turn, rounds in the order they began, whatever is offered: what other policies refine."""

    name = ""
    leases = True
    # How many orders `ranks` gives.
    orders = 1
    rounds_per_task = 1
    rounds_per_job: int | None = None
    # Whether the board keeps forecasts of what is left of each job; they cost time.
    forecasts = False
    # Measurements on the CPU need all of it, so a few for each CPU are gathered before the other stages are drained.
    gather_per_cpu = 2

    def ranks(self, work: Work, stage: StageView, step: Step, board: Board) -> tuple[Rank, ...]:
        """The place of an offer in each order, least first."""
        return ((*turn(work.view), ORDER[stage.kind]),)

    def cost(self, work: Work, stage: StageView, board: Board) -> float:
        """Seconds that a task's next round would take, for gain per second; the same for all unless it is known."""
        return 1.0

    def measure(self, kind: str, board: Board) -> Offer | None:
        """What to measure next on a device of a kind that is free."""
        return board.top("measure", (kind,))

    def prepare(self, board: Board) -> Offer | None:
        """The search, build or training that gets the next free CPU."""
        return board.top("proceed") or board.top("begin")

    def fill(self, board: Board) -> Offer | None:
        """What may still start on a CPU that is kept free for a measurement, because it ends before the rest do."""
        return None
