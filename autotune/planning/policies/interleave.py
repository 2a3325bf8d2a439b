"""The load-aware rule: stages of all jobs, any stage whose resources are free, in order.

Devices first, then rounds that have begun, then new rounds, each by the turn of their jobs. (Stiller, "A load-aware
scheduler for large-scale neural network autotuning", 2019, chapter 4.)
"""

from __future__ import annotations

from autotune.planning.board import Board
from autotune.planning.offers import Offer
from autotune.planning.policy import Policy

# Rounds in flight for each CPU. More would hide less idling and search on older knowledge.
ROUNDS_PER_CPU = 3


class Rule(Policy):
    """Keeps everything busy with whatever is there, and knows nothing of how long a stage takes."""

    name = "interleave"

    def prepare(self, board: Board) -> Offer | None:
        room = board.rounds_begun < ROUNDS_PER_CPU * len(board.machine.shared_cpus)
        return board.top("proceed") or (board.top("begin") if room else None)
