"""The load-aware policy: start any ready stage of any job whose resources are free.

Measurements go first, then rounds that have begun, then new rounds; within each, jobs go in turn. (Stiller, "A
load-aware scheduler for large-scale neural network autotuning", 2019, chapter 4.)
"""

from __future__ import annotations

from autotune.planning.policy import PlannerView, Policy
from autotune.planning.queues import ReadyStage

# Rounds in flight for each CPU. More of them would leave fewer resources idle, but each search would know less.
ROUNDS_PER_CPU = 3


class Interleave(Policy):
    """Keeps all resources busy. It does not use how long stages take."""

    name = "interleave"

    def pick_cpu_stage(self, planner: PlannerView) -> ReadyStage | None:
        may_begin = planner.rounds_begun < ROUNDS_PER_CPU * len(planner.machine.shared_cpus)
        return planner.first("continue") or (planner.first("begin") if may_begin else None)
