"""GPUs of this machine, with CUDA."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.devices.gpu import find_gpu
from autotune.errors import MachineProblem
from autotune.machine.disturbance import Quiet
from autotune.machine.gpus import CudaDevice, GpuCounters, cuda_devices, hide_all
from autotune.planning.view import ON_DEVICE
from autotune.stages.guard import GpuWatcher, Guard
from autotune.stages.tvm_bench import OpenTvmDevice, TvmBench
from autotune.storage.formats import Candidate, GpuNeeds
from autotune.storage.paths import Workspace

if TYPE_CHECKING:
    from autotune.tvm_backend.kernels.time_kernel import Timing
    from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner
    from autotune.tvm_backend.kernels.verify import Reference


class GpuBench(TvmBench):
    """A GPU. Others may use its memory, and it may be lost at any time."""

    suspect = (*TvmBench.suspect, "memory")
    stays_fit = False
    stays_open = True

    @classmethod
    def load(cls, workspace: Workspace) -> None:
        from autotune.tvm_backend.load import load_for_tuning

        load_for_tuning("cuda", ())
        cuda_devices()  # asked once, and known to the children that run stages

    @cached_property
    def gpu(self) -> CudaDevice | None:
        """The GPU that the stage runs on; None for a stage that needs none.

        Raises:
            MachineProblem: It is not there any more.
        """
        if self.stage.file.kind not in ON_DEVICE:
            return None
        gpu = find_gpu(self.stage.device, cuda_devices())
        if gpu is None:
            raise MachineProblem(f"{self.stage.device} is gone; look for it with nvidia-smi")
        return gpu

    def check_device(self) -> None:
        _ = self.gpu
        super().check_device()
        if self.gpu is None:
            hide_all()

    @property
    def fitness_key(self) -> str:
        gpu = self.gpu
        return json.dumps([self.stage.spec.target, gpu and [gpu.uuid, gpu.index]], sort_keys=True)

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        """Try the CPU out as well. Without a GPU the kernel is compiled only."""
        from autotune.tvm_backend.kernels import gpu_check, machine_check

        target = self.stage.spec.target
        machine_check.check_machine(target)
        if self.gpu is None:
            gpu_check.check_build(target)
            return
        arguments = candidates[0].args if candidates else []
        tensors = [(str(dtype), list(map(int, dims))) for _, dtype, dims in arguments]
        gpu_check.check_gpu(target, self.gpu, arguments=tensors, answers=self.stage.config.measure.verify)

    @property
    def reference_target(self) -> Mapping[str, Any] | None:
        host: Mapping[str, Any] = self.stage.spec.target["host"]
        return host

    def needs(self, library: Path) -> GpuNeeds | None:
        from autotune.tvm_backend.cuda import cubin

        return cubin.needs(library.read_bytes())

    def take(self) -> None:
        super().take()
        if self.gpu is not None:
            self.gpu.take()

    def open(self, truth: Reference | None) -> OpenTvmDevice:
        self.take()
        measure = self.stage.config.measure
        runner = _runner(self.timing(), measure.gpu_spin_up_ms, measure.gpu_cold_cache)
        return OpenTvmDevice.of(runner, truth, self.stage.artifacts)

    def guard(self, quiet: Quiet) -> Guard:
        """Watch the GPU through NVML, if that shows it."""
        counters = GpuCounters.open(self.gpu.uuid) if self.gpu else None
        if counters is None:
            return Guard.off()
        measure = self.stage.config.measure
        return Guard(GpuWatcher(counters).begin, measure.disturbed_again, measure.timeout_s / 2)


@cache
def _runner(timing: Timing, spin_up_ms: int, cold: bool) -> GpuRunner:
    """Open the GPU that CUDA shows to this process. One process times for many stages."""
    from autotune.tvm_backend.kernels import gpu_check
    from autotune.tvm_backend.kernels.time_kernel import open_device
    from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner

    device = open_device("cuda")
    with contextlib.suppress(Exception):  # `check` finds out whether that is the GPU's fault
        gpu_check.start(device)
    return GpuRunner(device, timing, spin_up_ms=spin_up_ms, cold=cold)
