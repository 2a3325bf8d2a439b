"""A stage, as its steps get it: what it is given, and what it asks of the device that its job is for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autotune.stages.bench import Bench
from autotune.stages.benches import bench_of
from autotune.stages.context import StageContext


@dataclass(frozen=True)
class Stage(StageContext):
    """One stage that is about to run in a worker."""

    @cached_property
    def bench(self) -> Bench:
        """What the stage asks of the device that the job is for."""
        return bench_of(self)
