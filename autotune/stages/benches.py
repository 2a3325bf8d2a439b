"""The kinds of devices that there are for stages. A new target adds its line here."""

from __future__ import annotations

from autotune.stages.bench import Bench
from autotune.stages.on_board import BoardBench
from autotune.stages.on_cpu import CpuBench, OtherCpuBench
from autotune.stages.on_gpu import GpuBench
from autotune.stages.on_simulated import SimulatedBench
from autotune.stages.stage import Stage

# By the kind of a target. Workers for CPUs serve boards as well.
BENCHES: dict[str, type[Bench]] = {"llvm": CpuBench, "cuda": GpuBench, "simulated": SimulatedBench}


def bench_of(stage: Stage) -> Bench:
    """Return what a stage asks of the device that its job is for."""
    if stage.spec.board:
        return BoardBench(stage)
    if stage.cross:
        return OtherCpuBench(stage)
    return BENCHES[stage.spec.target_kind](stage)
