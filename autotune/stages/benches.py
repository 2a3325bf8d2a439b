"""The halves of devices that stages use, by those that know no TVM. A new target adds its line here."""

from __future__ import annotations

from autotune import devices
from autotune.devices import Board, CommandDevice, Cpu, Device, Gpu, Simulated
from autotune.stages.bench import Bench
from autotune.stages.context import StageContext
from autotune.stages.on_board import BoardBench
from autotune.stages.on_command import CommandBench
from autotune.stages.on_cpu import CpuBench, OtherCpuBench
from autotune.stages.on_gpu import GpuBench
from autotune.stages.on_simulated import SimulatedBench

BENCHES: dict[type[Device], type[Bench]] = {
    Cpu: CpuBench,
    Gpu: GpuBench,
    Board: BoardBench,
    Simulated: SimulatedBench,
    CommandDevice: CommandBench,
}


def bench_of(stage: StageContext) -> Bench:
    """Return what a stage asks of the device that its job is for."""
    if stage.cross:
        return OtherCpuBench(stage)
    return BENCHES[type(devices.of_job(stage.spec, stage.config))](stage)
