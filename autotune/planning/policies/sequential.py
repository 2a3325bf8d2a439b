"""One job after another, one round at a time: the plain loop of a tuner that knows of nobody else."""

from __future__ import annotations

from autotune.planning.board import Board
from autotune.planning.offers import Offer
from autotune.planning.policy import Policy


class Rule(Policy):
    """The first of the two baselines: while a stage of the one round runs, everything else waits."""

    name = "sequential"
    rounds_per_job = 1

    def measure(self, kind: str, board: Board) -> Offer | None:
        return None if board.running else super().measure(kind, board)

    def prepare(self, board: Board) -> Offer | None:
        if board.running:
            return None
        # A round begun goes on before another begins, even if that of a more urgent job.
        return board.top("proceed") or (None if board.rounds_begun else board.top("begin"))
