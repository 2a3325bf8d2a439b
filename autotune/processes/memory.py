"""Limit the memory of processes, so that one that needs too much fails before the machine runs out of memory.

The limit is `RLIMIT_DATA`, which counts the private memory that a process may write to. A limit on the address space
would not work, because CUDA reserves hundreds of gigabytes of it without using them.

The values come from `/proc/self/status`: psutil's `data` includes the stack, which `RLIMIT_DATA` does not limit.
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.cgroups import memory_limit

ROOT = Path("/")
_MIB = 1 << 20
_SHARED_FRACTION = 0.8  # of the memory; the rest is for the daemon and other programs
_MIN_SHARE_MIB = 2048
_NEAR_LIMIT = 0.75  # of the limit: the allocation that failed may have been large


def memory_bytes(root: Path = ROOT) -> int:
    """Return the memory of this machine in bytes, or the limit of its container if that is less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit(root)
    return memory if limit is None else min(memory, int(limit.amount))


def memory_share(cpus: int, slots: int) -> int:
    """Return how much memory a stage may use, in MiB.

    Stages share 80% of the memory in proportion to their CPUs. Each may use at least 2 GiB.

    Args:
        cpus: How many CPUs the stage runs on.
        slots: How many CPUs all stages together may use.
    """
    return max(_MIN_SHARE_MIB, int(_SHARED_FRACTION * memory_bytes() // _MIB * cpus / max(cpus, slots)))


def limit_memory(mib: int) -> None:
    """Limit how much more memory this process, and each process that it forks, may allocate. Linux only.

    Args:
        mib: How much more memory, in MiB.
    """
    data = status_bytes("VmData")
    if not data:
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_below(hard, data + mib * _MIB), hard))


def limit_process(pid: int, share: float) -> int:
    """Limit the memory of another process. The limit cannot be raised again. Linux only.

    A process that has ended is ignored.

    Args:
        share: The fraction of this machine's memory that it may use.

    Returns:
        The limit in bytes.
    """
    limit = int(memory_bytes() * share)
    with contextlib.suppress(AttributeError, ProcessLookupError):
        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        limit = _below(hard, limit)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
    return limit


def _below(hard: int, limit: int) -> int:
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of a process, in bytes.

    Attributes:
        resident: The resident memory; 0 if the process has no limit.
        room: How much more it may allocate; None if it has no limit.
    """

    resident: int
    room: int | None

    @classmethod
    def here(cls) -> ProcessMemory:
        """Return the memory of this process now."""
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit == resource.RLIM_INFINITY:
            return cls(0, None)
        return cls(status_bytes("VmRSS"), max(0, limit - status_bytes("VmData")))

    def spent(self, peak: int) -> bool:
        """Return whether a child process came close to its limit.

        Args:
            peak: The largest resident memory of the child, in bytes.
        """
        return self.room is not None and peak - self.resident >= _NEAR_LIMIT * self.room

    @property
    def exceeded(self) -> str:
        """The error message for a child process that came close to its limit."""
        return "out of memory" if self.room is None else f"needs more than {self.room // _MIB} MiB of memory"


def status_bytes(name: str) -> int:
    """Return a value of /proc/self/status in bytes; 0 if there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
