"""What an export tells the user: each step when it starts, with its number, and what it waits for.

It waits for a CPU to compute on, or for everything that is measured on. The user is told only of a wait that is one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import BadState, Busy
from autotune.machine import gpus
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease, lease_one
from autotune.processes.messages import ExportRequest, StepReporter
from autotune.storage.formats import JobSpec
from autotune.storage.locks import Lease

LOADING = "loading TVM"
READING = "reading the model"
COMPILING = "compiling the best kernels so far"
VERIFYING = "verifying"
BUILDING = "building the best candidates of each task again"
TIMING = "timing these candidates in turns"
COMPILING_AGAIN = "compiling the fastest of them, and verifying again"
UNTUNED = "compiling the untuned model, to compare with"
THREADS = "timing it on fewer threads, too"
COMPARING = "comparing, each runtime alone in a process of its own"

_BETWEEN_S = 5.0  # seconds between two messages about the same step


def plan(request: ExportRequest) -> tuple[str, ...]:
    """Return the steps of an export. Verification comes before all that takes long, so that what fails, fails soon."""
    verified = (LOADING, READING, COMPILING, VERIFYING)
    if request.quick:
        return verified
    again = (BUILDING, TIMING, COMPILING_AGAIN) if request.contenders > 1 else ()
    asked = [step for step, wanted in ((THREADS, request.fewer_threads), (UNTUNED, request.untuned)) if wanted]
    return (*verified, *again, *asked, COMPARING)


@dataclass
class NumberedSteps:
    """Tells the steps of a plan. A step that there is nothing to do for is not told, and keeps its number.

    Attributes:
        tell: Is called with each message.
        steps: What `plan` returned.
    """

    tell: StepReporter
    steps: tuple[str, ...]
    _step: str = ""
    _told: float = field(default=0.0)

    def begin(self, step: str) -> None:
        """Tell that a step starts."""
        self._step = f"step {self.steps.index(step) + 1} of {len(self.steps)}: {step}"
        self._told = time.monotonic()
        self.tell(self._step)

    def done(self, count: int, total: int) -> None:
        """Tell how much of the current step is done, unless something was told a moment ago."""
        if time.monotonic() - self._told >= _BETWEEN_S:
            self._told = time.monotonic()
            self.tell(f"{self._step} ({count} of {total} done)")

    def wait(self, what: str) -> None:
        """Tell what is waited for. It does not count towards the time limit of the export."""
        self.tell(f"waiting for {what}", waiting=True)


@dataclass(frozen=True)
class Leases:
    """Waits for what a step may use, and says so.

    Attributes:
        request: What is exported, and where.
        steps: Tells the user the steps.
    """

    request: ExportRequest
    spec: JobSpec
    steps: NumberedSteps

    @contextlib.contextmanager
    def one_cpu(self) -> Iterator[None]:
        """Wait for a CPU to compute on."""
        with self._cpu():
            pin(self.request.cpus)
            yield

    @contextlib.contextmanager
    def free_cpus(self) -> Iterator[int]:
        """Wait for a CPU to compute on, take those that are free besides, and say how many these are."""
        with contextlib.ExitStack() as stack:
            count = 0
            for cpu in self.request.cpus:
                with contextlib.suppress(Busy):
                    stack.enter_context(lease(self._folder, [cpu_name(cpu)], wait_s=0))
                    count += 1
            if not count:
                stack.enter_context(self._cpu())
            pin(self.request.cpus)
            yield max(1, count)

    def _cpu(self, *devices: str) -> Lease:
        """Wait for a CPU, and for devices besides it."""
        for cpu in self.request.cpus:
            with contextlib.suppress(Busy):
                return lease(self._folder, [cpu_name(cpu), *devices], wait_s=0)
        self.steps.wait(" and ".join([*devices, "a CPU"]))
        if devices:
            return lease(self._folder, [cpu_name(self.request.cpus[-1]), *devices], wait_s=-1)
        return lease_one(self._folder, list(map(cpu_name, self.request.cpus)))

    @contextlib.contextmanager
    def all_to_measure_on(self) -> Iterator[None]:
        """Wait for everything that is measured on: the CPUs, which the reference uses, and the device of the target."""
        with self._measured_on():
            pin(self.request.measure_cpus)
            yield

    def _measured_on(self) -> Lease:
        gpu = gpu_of(self.spec)
        devices = [gpu_name(gpu)] if gpu is not None else []
        names = [*map(cpu_name, self.request.measure_cpus), *devices]
        with contextlib.suppress(Busy):
            return lease(self._folder, names, wait_s=0)
        self.steps.wait("the CPUs to measure on")
        return lease(self._folder, names, wait_s=-1)

    @contextlib.contextmanager
    def comparison(self) -> Iterator[None]:
        """Wait for what the model is verified and timed on: for a board, the tracker is asked later."""
        if self.request.board is not None:
            with self.one_cpu():
                yield
            return
        with self.all_to_measure_on():
            yield

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Wait for what the library and its kernels are timed on: a GPU needs but one CPU, which launches them."""
        gpu = gpu_of(self.spec)
        if gpu is None:
            with self.comparison():
                yield
            return
        with self._cpu(gpu_name(gpu)):
            pin(self.request.cpus)
            yield

    @property
    def _folder(self) -> Path:
        return Path(self.request.lock_folder)


def gpu_name(gpu: gpus.CudaDevice) -> str:
    """Return the name of a GPU's lease."""
    return f"{gpus.KIND}:{gpu.index}"


def gpu_of(spec: JobSpec) -> gpus.CudaDevice | None:
    """Return the first GPU of the target's architecture, if the target is one."""
    if spec.target_kind != gpus.KIND:
        return None
    arch = spec.target.get("arch")
    gpu = next((device for device in gpus.cuda_devices() if device.arch == arch), None)
    if gpu is None:
        raise BadState(f"the job is for CUDA, {arch}, and this machine has no such GPU; export it on one that has")
    return gpu
