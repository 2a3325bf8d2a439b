"""What this machine has: the CPUs we may use, its CPU model, its CUDA devices. Never imports TVM."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class CudaDevice:
    """One GPU. `index` is its number when GPUs are ordered by PCI bus id; `arch` is such as `sm_90`."""

    index: int
    name: str
    arch: str


def usable_cpus() -> tuple[int, ...]:
    """The CPU numbers this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def lent_cpus(slots: int) -> tuple[int, ...]:
    """The CPUs that tuning may use: the first `slots` of the usable ones, or all of them for 0."""
    return usable_cpus()[: slots or None]


def pin(cpus: Collection[int]) -> None:
    """Let this process, with the threads that it has started, run on these CPUs only. Linux only."""
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread), cpus)


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The marketing name of the CPU with its family, model and stepping, such as `AMD EPYC 25/17/1`."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if not key.strip():
                break
            found[key.strip()] = value.strip()
    except OSError:
        return "unknown CPU"
    numbers = "/".join(found.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{found.get('model name', 'unknown CPU')} {numbers}"


@lru_cache(maxsize=1)
def cuda_devices() -> tuple[CudaDevice, ...]:
    """The GPUs that the driver shows, in PCI bus order; none where there is no working driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=pci.bus_id,name,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if answer.returncode:
        return ()
    rows = sorted(line.split(", ") for line in answer.stdout.splitlines() if line.count(", ") == 2)
    return tuple(
        CudaDevice(index, name, f"sm_{capability.replace('.', '')}") for index, (_, name, capability) in enumerate(rows)
    )
