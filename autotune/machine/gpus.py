"""The GPUs of this machine that we may use, how a process takes one of them, and what disturbs it. Never imports TVM.

A GPU has one name for everybody on the machine, `cuda:1`, with its number in the order of the PCI bus, as nvidia-smi
counts. What `CUDA_VISIBLE_DEVICES` hides keeps its number, so that leases of different users mean the same GPU. NVML
tells which programs compute on it, its clock, and what holds that down.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

QUERY = "--query-gpu=pci.bus_id,uuid,name,compute_cap"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_LIMIT_S = 20
KIND = "cuda"
_NVML = "libnvidia-ml.so.1"  # the driver's library, which is in every container that has a GPU
# Prints what nvidia-smi would. It has a process of its own, because a driver may hang and its state survives no fork.
_ASK_NVML = """
import pynvml as nvml

nvml.nvmlInit()
for index in range(nvml.nvmlDeviceGetCount()):
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = "%d.%d" % nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    bus = nvml.nvmlDeviceGetPciInfo(gpu).busId
    bus = bus.decode() if isinstance(bus, bytes) else bus
    print(bus, nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu), capability, sep=", ")
"""
# Bits of NVML's clock event reasons, with the words for them. A power cap is not among them: large GPUs reach theirs
# in normal work.
_POWER_CAP = 0x4
_BRAKES = {
    0x40: "its temperature",
    0x20: "its temperature",
    0x80: "its power supply",
    0x8: "its temperature or its power supply",
}
_FOR_ONE_PROCESS = {2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's numbers of compute modes
_SM = 1  # NVML's number for the clock of the multiprocessors
_LOOKS_BACK_US = 500_000  # the driver samples the use of a GPU some times a second


@dataclass(frozen=True)
class CudaDevice:
    """One GPU. `index` is its number when GPUs are ordered by PCI bus id; `arch` is such as `sm_90`."""

    index: int
    name: str
    arch: str
    uuid: str = ""

    def take(self) -> None:
        """Let CUDA show this GPU alone to this process, as its device 0. Only before the first call to CUDA."""
        os.environ[_ORDER] = "PCI_BUS_ID"
        os.environ[_VISIBLE] = self.uuid or str(self.index)


def hide_all() -> None:
    """Let CUDA show no GPU to this process, which is to compute on CPUs: XGBoost opens one if it can."""
    os.environ[_VISIBLE] = ""


@lru_cache(maxsize=1)
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The GPUs that the driver shows and `CUDA_VISIBLE_DEVICES` does not hide; none where there is no working driver.

    They are in the order of that variable; without one, in PCI bus order.
    """
    return visible(_all_devices(), os.environ.get(_VISIBLE))


def visible(devices: Sequence[CudaDevice], setting: str | None) -> tuple[CudaDevice, ...]:
    """What `CUDA_VISIBLE_DEVICES` lets through: numbers, or beginnings of UUIDs; nothing from an unknown one on."""
    if setting is None:
        return tuple(devices)
    chosen: list[CudaDevice] = []
    for word in map(str.strip, setting.split(",")):
        meant = [
            gpu for gpu in devices if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
        ]
        if len(meant) != 1 or meant[0] in chosen:
            break
        chosen += meant
    return tuple(chosen)


def _all_devices() -> tuple[CudaDevice, ...]:
    """Ask NVML, which answers sooner than nvidia-smi and is there where that is not; else nvidia-smi."""
    rows = _rows([sys.executable, "-c", _ASK_NVML]) if _has_nvml() else []
    tool = shutil.which("nvidia-smi")
    if not rows and tool is not None:
        rows = _rows([tool, QUERY, "--format=csv,noheader"])
    return tuple(
        CudaDevice(index, name, f"sm_{capability.replace('.', '')}", uuid)
        for index, (_, uuid, name, capability) in enumerate(rows)
    )


def _has_nvml() -> bool:
    """Whether NVML and its bindings are here. To load the library starts nothing."""
    try:
        return importlib.util.find_spec("pynvml") is not None and bool(ctypes.CDLL(_NVML))
    except OSError:
        return False


def _rows(command: Sequence[str]) -> list[list[str]]:
    """Return bus id, UUID, name and compute capability of each GPU, in PCI bus order; none where the command fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = answer.stdout.splitlines() if not answer.returncode else []
    return sorted(line.split(", ") for line in lines if line.count(", ") == 3)


@dataclass(frozen=True)
class GpuThresholds:
    """The limits above which a measurement on a GPU counts as disturbed.

    Attributes:
        others: The percentage of its time that other processes may use.
        clock: The fraction of the highest clock seen that it must keep.
    """

    others: int = 5
    clock: float = 0.8


THRESHOLDS = GpuThresholds()


@dataclass(frozen=True)
class GpuSample:
    """What NVML says at one moment.

    Attributes:
        others: The percentage of the GPU's time that each other process lately used, by process number; None where the
            driver does not say.
        mhz: The clock of its multiprocessors; 0 if unknown.
        held_down: The bits of what holds the clock down.
    """

    others: dict[int, int | None]
    mhz: int
    held_down: int


@dataclass(frozen=True)
class GpuCounters:
    """A GPU as NVML knows it, for this process, which computes on it itself."""

    handle: Any

    @classmethod
    def open(cls, uuid: str) -> GpuCounters | None:
        """Return the GPU with a UUID; None where NVML or its bindings are not installed, or do not know it."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def restricted(self) -> str:
        """Return the name of a compute mode that keeps a second process from the GPU; empty if it lets several in."""
        import pynvml

        return _FOR_ONE_PROCESS.get(_or(0, pynvml.nvmlDeviceGetComputeMode, self.handle), "")

    def sample(self) -> GpuSample:
        """Read the GPU's state. What the driver does not tell is left out."""
        import pynvml

        return GpuSample(
            self._others(),
            _or(0, pynvml.nvmlDeviceGetClockInfo, self.handle, _SM),
            _or(0, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self.handle),
        )

    def _others(self) -> dict[int, int | None]:
        import pynvml

        listed = _or([], pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        since = int(time.time() * 1e6) - _LOOKS_BACK_US
        used = _used(self.handle, since) if listed else {}
        pids = [int(process.pid) for process in listed]
        return without_own({pid: None if used is None else used.get(pid, 0) for pid in pids}, os.getpid())


def _used(handle: Any, since_us: int) -> dict[int, int] | None:
    """Return the percentage that each process used since a moment; None where the driver does not say."""
    import pynvml

    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError_NotFound:
        return {}  # nobody used it
    except pynvml.NVMLError:
        return None
    percent: dict[int, int] = {}
    for sample in samples:
        if sample.timeStamp >= since_us:
            percent[int(sample.pid)] = max(percent.get(int(sample.pid), 0), int(sample.smUtil))
    return percent


def _or(default: Any, ask: Any, *arguments: Any) -> Any:
    """Return NVML's answer, or a default where it has none."""
    import pynvml

    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return default


def without_own(processes: dict[int, int | None], own: int) -> dict[int, int | None]:
    """Return the processes but this one.

    In a container NVML may count processes as the host does. Then this one is among them under an unknown number, and
    the busiest is taken for it.
    """
    if not processes:
        return {}
    mine = own if own in processes else max(processes, key=lambda pid: processes[pid] or 0)
    return {pid: used for pid, used in processes.items() if pid != mine}


def gpu_disturbance(before: GpuSample, after: GpuSample, highest_mhz: int) -> str:
    """Return what disturbed a measurement on a GPU; empty if nothing did.

    Args:
        before: What NVML said before the measurement.
        after: What it said after it.
        highest_mhz: The highest clock that was seen so far.
    """
    held_down = before.held_down | after.held_down
    brake = next((words for bit, words in _BRAKES.items() if held_down & bit), "")
    if brake:
        return f"the clock of the GPU was held down by {brake}"
    if any(used is None for used in after.others.values()):
        return f"{len(after.others)} other process{'es' * (len(after.others) > 1)} had work on the GPU"
    most = max((sum(used or 0 for used in sample.others.values()) for sample in (before, after)), default=0)
    if most > THRESHOLDS.others:
        return f"other processes used {min(most, 100)}% of the GPU"
    if after.mhz and after.mhz < THRESHOLDS.clock * highest_mhz and not held_down & _POWER_CAP:
        return f"the clock of the GPU fell from {highest_mhz} to {after.mhz} MHz"
    return ""
