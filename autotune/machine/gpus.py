"""The GPUs of this machine that we may use, and how a process takes one of them. Never imports TVM.

A GPU has one name for everybody on the machine, `cuda:1`, with its number in the order of the PCI bus, as nvidia-smi
counts. What `CUDA_VISIBLE_DEVICES` hides keeps its number, so that leases of different users mean the same GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
