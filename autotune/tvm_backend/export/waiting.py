"""Wait for what a step of an export may use: a CPU, or everything that is measured on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadState
from autotune.machine import gpus
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease, lease_one
from autotune.processes.messages import ExportRequest, StepReporter
from autotune.storage.formats import JobSpec


@dataclass(frozen=True)
class Leases:
    """Waits for what a step may use, and says so.

    Attributes:
        request: What is exported, and where.
        spec: The job.
        progress: Called with a description of each step when it starts.
    """

    request: ExportRequest
    spec: JobSpec
    progress: StepReporter

    @contextlib.contextmanager
    def one_cpu(self) -> Iterator[None]:
        """Wait for a CPU to compute on."""
        self.progress("waiting for a CPU", waiting=True)
        with lease_one(self._folder, map(cpu_name, self.request.cpus)):
            pin(self.request.cpus)
            yield

    @contextlib.contextmanager
    def all_to_measure_on(self) -> Iterator[None]:
        """Wait for everything that is measured on: the CPUs, which the reference uses, and the device of the target."""
        self.progress("waiting for the CPUs to measure on", waiting=True)
        gpu = gpu_of(self.spec)
        devices = [f"{gpus.KIND}:{gpu.index}"] if gpu is not None else []
        with lease(self._folder, [*map(cpu_name, self.request.measure_cpus), *devices], wait_s=-1):
            pin(self.request.measure_cpus)
            yield

    @contextlib.contextmanager
    def comparison(self) -> Iterator[None]:
        """Wait for what the model is verified and timed on: for a board, the tracker is asked later."""
        if self.request.board is not None:
            with self.one_cpu():
                self.progress("verifying and timing on a board")
                yield
            return
        with self.all_to_measure_on():
            self.progress("verifying and comparing, each runtime alone in a process of its own")
            yield

    @property
    def _folder(self) -> Path:
        return Path(self.request.lock_folder)


def gpu_of(spec: JobSpec) -> gpus.CudaDevice | None:
    """Return the first GPU of the target's architecture, if the target is one."""
    if spec.target_kind != gpus.KIND:
        return None
    arch = spec.target.get("arch")
    gpu = next((device for device in gpus.cuda_devices() if device.arch == arch), None)
    if gpu is None:
        raise BadState(f"the job is for CUDA, {arch}, and this machine has no such GPU; export it on one that has")
    return gpu
