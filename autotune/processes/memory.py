"""Limits on memory: a process that asks for more than its share is refused, and ends without harm to the machine.

The limit is on data (`RLIMIT_DATA`: what a process may write and shares with nobody). The address space, which
CUDA reserves by the hundred gigabytes, says nothing of what is used.
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
_LENT = 0.8
_LEAST_MIB = 2048
_NEARLY = 0.75


def memory_bytes(root: Path = ROOT) -> int:
    """The memory of this machine, or what its container may use if that is less."""
    memory, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit(root)
    return memory if limit is None else min(memory, int(limit.amount))


def memory_share(cpus: int, slots: int) -> int:
    """MiB that a stage on so many of the CPU slots may have: that share of 80% of the memory, but at least 2 GiB."""
    return max(_LEAST_MIB, int(_LENT * memory_bytes() // _MIB * cpus / max(cpus, slots)))


def limit_memory(mib: int) -> None:
    """Let this process, and each that it forks, have so much data above what is loaded. No effect outside Linux."""
    data = _status("VmData")
    if not data:
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_below(hard, data + mib * _MIB), hard))


def limit_process(pid: int, share: float) -> int:
    """Let another process have this share of the memory as data, for good. Returns the limit in bytes.

    No effect outside Linux, and none on a process that has ended.
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
    """What this process has, and what it may have above that, in bytes; `room` is None without a limit."""

    resident: int
    room: int | None

    @classmethod
    def here(cls) -> Memory:
        """Of this process, now."""
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit == resource.RLIM_INFINITY:
            return cls(0, None)
        return cls(_status("VmRSS"), max(0, limit - _status("VmData")))

    def spent(self, peak: int) -> bool:
        """Whether a child that had `peak` resident bytes at most came close to its limit."""
        return self.room is not None and peak - self.resident >= _NEARLY * self.room

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
