"""Limits on memory: a process that asks for more than its share is refused, before the machine runs out.

The limit is on data (`RLIMIT_DATA`: private memory that a process may write to). A limit on the address space would
not do, because CUDA reserves hundreds of gigabytes of it without using them.

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
_SHARED_FRACTION = 0.8  # of the memory; the rest is for the daemon and everybody else
_SMALLEST_SHARE_MIB = 2048
_NEAR_LIMIT = 0.75  # of the limit: an allocation that is refused may be a large part of what was left


def memory_bytes(root: Path = ROOT) -> int:
    """Return the memory of this machine in bytes, or what its container may use if that is less."""
    memory, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit(root)
    return memory if limit is None else min(memory, int(limit.amount))


def memory_share(cpus: int, slots: int) -> int:
    """Return how much memory a stage may have, in MiB: its share of 80% of the memory, but at least 2 GiB.

    Args:
        cpus: how many CPUs the stage runs on.
        slots: how many CPUs all stages together may use.
    """
    return max(_SMALLEST_SHARE_MIB, int(_SHARED_FRACTION * memory_bytes() // _MIB * cpus / max(cpus, slots)))


def limit_memory(mib: int) -> None:
    """Limit this process, and each that it forks, to the data it has now and `mib` MiB. No effect outside Linux."""
    data = _status("VmData")
    if not data:
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_below(hard, data + mib * _MIB), hard))


def limit_process(pid: int, share: float) -> int:
    """Limit the data of another process for good. No effect outside Linux, and none on a process that has ended.

    Args:
        share: of the memory of this machine; 1 for all of it.

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
class Memory:
    """The memory of a process, in bytes.

    Attributes:
        resident: what it has; 0 without a limit.
        room: how much more data it may have; None without a limit.
    """

    resident: int
    room: int | None

    @classmethod
    def here(cls) -> Memory:
        """Return what this process has now."""
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit == resource.RLIM_INFINITY:
            return cls(0, None)
        return cls(_status("VmRSS"), max(0, limit - _status("VmData")))

    def spent(self, peak: int) -> bool:
        """Return whether a child whose resident memory was `peak` bytes at most came close to its limit."""
        return self.room is not None and peak - self.resident >= _NEAR_LIMIT * self.room

    @property
    def exceeded(self) -> str:
        return "out of memory" if self.room is None else f"needs more than {self.room // _MIB} MiB of memory"


def _status(name: str) -> int:
    """A value of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
