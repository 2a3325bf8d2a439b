"""The GPUs of this machine that we may use, and how a process takes one of them. Never imports TVM.

A GPU has one name for everybody on the machine, `cuda:1`, with its number in the order of the PCI bus, as nvidia-smi
counts. What `CUDA_VISIBLE_DEVICES` hides keeps its number, so that leases of different users mean the same GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

QUERY = "--query-gpu=pci.bus_id,uuid,name,compute_cap"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_LIMIT_S = 20
KIND = "cuda"


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
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, QUERY, "--format=csv,noheader"], capture_output=True, text=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if answer.returncode:
        return ()
    rows = sorted(line.split(", ") for line in answer.stdout.splitlines() if line.count(", ") == 3)
    return tuple(
        CudaDevice(index, name, f"sm_{capability.replace('.', '')}", uuid)
        for index, (_, uuid, name, capability) in enumerate(rows)
    )
