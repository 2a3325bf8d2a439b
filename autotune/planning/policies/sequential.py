"""A baseline: one stage at a time, one job after another, the loop of a tuner that tunes one model."""

from __future__ import annotations

from autotune.planning.policy import PlannerView, Policy
from autotune.planning.queues import ReadyStage


class Sequential(Policy):
    """While a stage runs, all others wait."""

    name = "sequential"
    rounds_per_job = 1

    def pick_measurement(self, kind: str, planner: PlannerView) -> ReadyStage | None:
        return None if planner.stages_running else super().pick_measurement(kind, planner)

    def pick_cpu_stage(self, planner: PlannerView) -> ReadyStage | None:
        if planner.stages_running:
            return None
        # A round that has begun is finished before another begins, even one of a more urgent job.
        return planner.first("continue") or (None if planner.rounds_begun else planner.first("begin"))
