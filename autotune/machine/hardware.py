"""Find out what this machine has: a tested platform, the CPUs that we may use, its CPU model."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from autotune.errors import MachineProblem
from autotune.machine.cgroups import cpu_quota
from autotune.machine.topology import preferred, set_aside, topology

ROOT = Path("/")
_ROUNDING = 0.01  # a quota of 1.999 CPUs counts as 2 CPUs
_TESTED = ("Linux", "x86_64")
_OVERRIDE = "AUTOTUNE_UNTESTED_PLATFORM"


def allowed_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs that this process can keep busy all the time, ascending.

    They are no more than the CPU quota of its container allows.

    Args:
        root: The root of the file system; tests give another one.
    """
    allowed = allowed_cpus()
    quota = cpu_quota(root)
    whole = len(allowed) if quota is None else max(1, int(quota.amount + _ROUNDING))
    return _some(allowed, whole, root)


def lent_cpus(slots: int, root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs that tuning may use.

    Fast cores are preferred. The second threads of cores are taken last.

    Args:
        slots: How many of the usable CPUs to take; 0 for all of them.
        root: The root of the file system; tests give another one.
    """
    return _some(usable_cpus(root), slots, root)


def kept_cpus(lent: tuple[int, ...], count: int, root: Path = ROOT) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the CPUs that only measurements use.

    At least one CPU is left for the other stages: a container may have fewer CPUs than the settings assume.

    Args:
        lent: The CPUs that tuning may use.
        count: How many of them are for measurements.
        root: The root of the file system; tests give another one.

    Returns:
        The CPUs for measurements, and the CPUs that stay idle because they share a core with those.
    """
    return set_aside(topology(lent, root), min(count, len(lent) - 1))


def _some(cpus: tuple[int, ...], count: int, root: Path) -> tuple[int, ...]:
    return preferred(topology(cpus, root), count) if 0 < count < len(cpus) else cpus


def pin(cpus: Collection[int]) -> None:
    """Let this process and all of its threads run on these CPUs only. Linux only."""
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), cpus)


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Return the names of what the CPU can do, such as `avx2`, as the kernel lists them; none where it does not.

    Args:
        root: The root of the file system; tests give another one.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """Return the marketing name of the CPU with its family, model and stepping, such as `AMD EPYC 25/17/1`."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if not key.strip():
                break
            fields[key.strip()] = value.strip()
    except OSError:
        return "unknown CPU"
    numbers = "/".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', 'unknown CPU')} {numbers}"


def check_platform() -> None:
    """Refuse a platform that autotune was never tested on.

    TVM's wheels for Linux on aarch64 install, but nothing has shown that the kernels which autotune makes there are
    right or fast.

    Raises:
        MachineProblem: This is not Linux on x86-64, and the user has not said to go on regardless.
    """
    here = (platform.system(), platform.machine())
    if here != _TESTED and os.environ.get(_OVERRIDE) != "1":
        raise MachineProblem(
            f"autotune is tested on Linux on x86-64 only, and this is {here[0]} on {here[1]};"
            f" set {_OVERRIDE}=1 to try it regardless"
        )
