"""What this machine has: the CPUs we may use, its CPU model. Never imports TVM."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from autotune.machine.cgroups import cpu_quota
from autotune.machine.topology import preferred, set_aside, topology

ROOT = Path("/")
_ROUNDING = 0.01  # a quota of 1.999 CPUs is one of two


def allowed_cpus() -> tuple[int, ...]:
    """The CPU numbers this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """The CPUs this process may keep busy all the time, ascending: no more than its container has time for."""
    allowed, quota = allowed_cpus(), cpu_quota(root)
    whole = len(allowed) if quota is None else max(1, int(quota.amount + _ROUNDING))
    return _some(allowed, whole, root)


def lent_cpus(slots: int, root: Path = ROOT) -> tuple[int, ...]:
    """The CPUs that tuning may use: `slots` of the usable ones, or all of them for 0.

    Fast cores come first, and second threads of a core last.
    """
    return _some(usable_cpus(root), slots, root)


def kept_cpus(lent: tuple[int, ...], count: int, root: Path = ROOT) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of the lent CPUs that measurements have to themselves, and those left idle for their sake.

    `count` is brought down where nothing would be left for other stages: a container may have fewer CPUs than
    the settings were made for.
    """
    return set_aside(topology(lent, root), min(count, len(lent) - 1))


def _some(cpus: tuple[int, ...], count: int, root: Path) -> tuple[int, ...]:
    return preferred(topology(cpus, root), count) if 0 < count < len(cpus) else cpus


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
