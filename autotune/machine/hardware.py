"""What this machine has: a tested platform, the CPUs that we may use and how they share cores and memory, its model."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.errors import MachineProblem
from autotune.machine.cgroups import ROOT, cpu_quota

_EFFICIENT = 0.8  # of the capacity or clock of the fastest core; cores of the same kind differ by less than 10%
_ROUNDING = 0.01  # a quota of 1.999 CPUs counts as 2 CPUs
_TESTED = ("Linux", "x86_64")
_OVERRIDE = "AUTOTUNE_UNTESTED_PLATFORM"
_ARM_NUMBERS = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")


@dataclass(frozen=True)
class LogicalCpu:
    """A logical CPU.

    Attributes:
        core: The numbers of the CPUs that share its core, including its own.
        node: Its NUMA node.
        efficient: Whether it is an efficiency core.
    """

    number: int
    core: tuple[int, ...]
    node: int = 0
    efficient: bool = False


@lru_cache(maxsize=8)
def topology(numbers: tuple[int, ...], root: Path = ROOT) -> tuple[LogicalCpu, ...]:
    """Return what the system says about some CPUs.

    If it says nothing, each CPU has its own core and all cores are of the same kind.

    Returns:
        The CPUs in the same order.
    """
    nodes = _nodes(root)
    slow = _efficient(numbers, root)
    return tuple(LogicalCpu(number, _core(root, number), nodes.get(number, 0), number in slow) for number in numbers)


def preferred(cpus: Iterable[LogicalCpu], count: int) -> tuple[int, ...]:
    """Choose `count` of the CPUs: preferably fast ones, one on each core, on one node.

    Returns:
        Their numbers, ascending.
    """
    return tuple(sorted(cpu.number for cpu in _by_preference(cpus)[:count]))


def set_aside(cpus: Sequence[LogicalCpu], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the CPUs that only measurements use.

    If there are enough cores, each of these CPUs has its own core. Otherwise they fill whole cores. If that is not
    possible either, they are the last CPUs, and may share a core with other stages.

    Args:
        count: How many to choose.

    Returns:
        The CPUs for measurements, and the CPUs that stay idle because they share a core with those.
    """
    if not count:
        return (), ()
    cores = _cores(cpus)
    if len(cores) > count:
        chosen = cores[:count]
        kept = tuple(sorted(core[0] for core in chosen))
        return kept, tuple(sorted(number for core in chosen for number in core[1:]))
    whole = _whole_cores(cores, count)
    return whole or tuple(sorted(cpu.number for cpu in cpus)[-count:]), ()


def shares_core(cpus: Iterable[LogicalCpu], others: Collection[int]) -> tuple[int, ...]:
    """Return the numbers of those CPUs that share a core with one of `others`, ascending."""
    wanted = set(others)
    return tuple(sorted(cpu.number for cpu in cpus if wanted & (set(cpu.core) - {cpu.number})))


def parse_list(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs: `0-3,6` gives 0, 1, 2, 3, 6. A list that cannot be parsed gives none."""
    numbers: list[int] = []
    for span in text.strip().split(","):
        first, _, last = span.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return ()
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _by_preference(cpus: Iterable[LogicalCpu]) -> list[LogicalCpu]:
    cpus = list(cpus)
    members = {cpu.number for cpu in cpus}
    size = {node: sum(cpu.node == node for cpu in cpus) for node in {cpu.node for cpu in cpus}}

    def key(cpu: LogicalCpu) -> tuple[object, ...]:
        thread = sum(other < cpu.number for other in cpu.core if other in members)
        return cpu.efficient, thread, -size[cpu.node], cpu.node, cpu.number

    return sorted(cpus, key=key)


def _cores(cpus: Sequence[LogicalCpu]) -> list[tuple[int, ...]]:
    """Return the cores as tuples of CPUs in order of preference: fast ones first, on the node with the most CPUs.

    Of equal cores the last comes first, because the first ones handle interrupts.
    """
    members = {cpu.number: cpu for cpu in cpus}
    cores = {tuple(number for number in cpu.core if number in members) or (cpu.number,) for cpu in cpus}
    size = {node: sum(cpu.node == node for cpu in cpus) for node in {cpu.node for cpu in cpus}}

    def key(core: tuple[int, ...]) -> tuple[object, ...]:
        cpu = members[core[0]]
        return cpu.efficient, -size[cpu.node], cpu.node, -core[0]

    return sorted(cores, key=key)


def _whole_cores(cores: Sequence[tuple[int, ...]], count: int) -> tuple[int, ...]:
    """Return exactly `count` CPUs that fill whole cores and leave at least one core; none if that is impossible."""
    kept: list[int] = []
    for core in cores[:-1]:
        if len(kept) + len(core) <= count:
            kept += core
    return tuple(sorted(kept)) if len(kept) == count else ()


def _core(root: Path, number: int) -> tuple[int, ...]:
    folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the new name and the old one
        siblings = parse_list(_text(folder / name))
        if number in siblings:
            return siblings
    return (number,)


def _nodes(root: Path) -> dict[int, int]:
    nodes = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        nodes.update(dict.fromkeys(parse_list(_text(folder / "cpulist")), int(folder.name[4:])))
    return nodes


def _efficient(numbers: Sequence[int], root: Path) -> set[int]:
    """Return the efficiency cores: those that Intel's driver names, else by capacity (Arm), else by clock frequency."""
    named = set(parse_list(_text(root / "sys/devices/cpu_atom/cpus"))) & set(numbers)
    if named:
        return named if named < set(numbers) else set()
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        rates = {number: _number(root / f"sys/devices/system/cpu/cpu{number}" / name) for number in numbers}
        slow = {number for number, rate in rates.items() if 0 < rate < _EFFICIENT * max(rates.values())}
        if slow:
            return slow
    return set()


def _number(file: Path) -> int:
    text = _text(file).strip()
    return int(text) if text.isdigit() else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def cache_bytes(level: int, numbers: Iterable[int], root: Path = ROOT) -> int:
    """Return the bytes of data that the caches of a level hold for some CPUs together; 0 where it is not known.

    Args:
        level: 1 is the nearest.
        numbers: The CPUs. A cache that several of them share counts once.
    """
    sizes = dict[tuple[int, ...], int]()
    for number in numbers:
        for folder in (root / f"sys/devices/system/cpu/cpu{number}/cache").glob("index[0-9]*"):
            if _number(folder / "level") == level and _text(folder / "type").strip() != "Instruction":
                shared = parse_list(_text(folder / "shared_cpu_list")) or (number,)
                sizes[shared] = _number_of_bytes(_text(folder / "size").strip())
    return sum(sizes.values())


def _number_of_bytes(text: str) -> int:
    digits = text.rstrip("KM")
    return int(digits) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1) if digits.isdecimal() else 0


def allowed_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs that this process can keep busy all the time, ascending.

    They are no more than the CPU quota of its container allows.
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
    """
    return _some(usable_cpus(root), slots, root)


def kept_cpus(lent: tuple[int, ...], count: int, root: Path = ROOT) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the CPUs that only measurements use.

    At least one CPU is left for the other stages: a container may have fewer CPUs than the settings assume.

    Args:
        lent: The CPUs that tuning may use.
        count: How many of them are for measurements.

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


@lru_cache(maxsize=1)
def cpu_model(root: Path = ROOT) -> str:
    """Return the name of the CPU with the numbers by which its maker tells it from others.

    They are its family, model and stepping on x86, as in `AMD EPYC 25/17/1`, and on Arm, where the kernel gives no
    name, its maker, part, variant and revision.
    """
    fields: dict[str, str] = {}
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if not key.strip():
                break
            fields[key.strip()] = value.strip()
    except OSError:
        return "unknown CPU"
    if "CPU part" in fields:
        return f"Arm CPU {'/'.join(fields.get(key, '?') for key in _ARM_NUMBERS)}"
    numbers = "/".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', 'unknown CPU')} {numbers}"


def check_platform() -> None:
    """Refuse a platform that autotune was never tested on.

    Kernels for AArch64 were compiled on x86-64, and an emulator ran them. Nothing has shown whether TVM's wheels for
    Linux on AArch64 work, and how fast the kernels are.

    Raises:
        MachineProblem: This is not Linux on x86-64, and the user has not said to go on regardless.
    """
    here = (platform.system(), platform.machine())
    if here != _TESTED and os.environ.get(_OVERRIDE) != "1":
        raise MachineProblem(
            f"autotune is tested on Linux on x86-64 only, and this is {here[0]} on {here[1]};"
            f" set {_OVERRIDE}=1 to try it regardless"
        )
