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
_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
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
    found: list[CudaDevice] = []
    for word in map(str.strip, setting.split(",")):
        chosen = [
            it for it in devices if word == str(it.index) or (word.startswith("GPU-") and it.uuid.startswith(word))
        ]
        if len(chosen) != 1 or chosen[0] in found:
            break
        found += chosen
    return tuple(found)


def device_kind(arch: str, devices: Sequence[CudaDevice]) -> str:
    """The kind of device that a job for an architecture is measured on.

    It is `cuda` where all GPUs are alike. A GPU of another architecture than the first one has a kind of its own,
    such as `cuda-sm_80`, since neither runs what is compiled for the other, nor may their times be mixed.
    """
    return KIND if not devices or devices[0].arch == arch else f"{KIND}-{arch}"


def device_names(devices: Sequence[CudaDevice]) -> tuple[str, ...]:
    """The names of the devices, of which each begins with its kind."""
    return tuple(f"{device_kind(device.arch, devices)}:{device.index}" for device in devices)


def lock_name(device: str) -> str:
    """The name under which a device is leased: the same in all workspaces, whatever else is visible there."""
    kind, _, number = device.partition(":")
    return f"{KIND}:{number}" if kind.startswith(f"{KIND}-") else device


def find_device(device: str, devices: Sequence[CudaDevice]) -> CudaDevice | None:
    """The GPU of a name; the first one for an empty name; None if it is not visible."""
    number = device.partition(":")[2]
    return next((found for found in devices if number in ("", str(found.index))), None)


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
