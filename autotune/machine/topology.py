"""Read from /sys how the CPUs of this machine share cores and memory, and which of them are efficiency cores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path("/")
_EFFICIENT = 0.8  # of the capacity or clock of the fastest core; cores of the same kind differ by less than 10%


@dataclass(frozen=True)
class Cpu:
    """A logical CPU.

    Attributes:
        number: Its number.
        core: The numbers of the CPUs that share its core, including its own.
        node: Its NUMA node.
        efficient: Whether it is an efficiency core.
    """

    number: int
    core: tuple[int, ...]
    node: int = 0
    efficient: bool = False


@lru_cache(maxsize=8)
def topology(numbers: tuple[int, ...], root: Path = ROOT) -> tuple[Cpu, ...]:
    """Return what the system says about some CPUs.

    If it says nothing, each CPU has its own core and all cores are of the same kind.

    Args:
        numbers: The CPUs.
        root: The root of the file system; tests give another one.

    Returns:
        The CPUs in the same order.
    """
    nodes = _nodes(root)
    slow = _efficient(numbers, root)
    return tuple(Cpu(number, _core(root, number), nodes.get(number, 0), number in slow) for number in numbers)


def preferred(cpus: Iterable[Cpu], count: int) -> tuple[int, ...]:
    """Choose `count` of the CPUs: preferably fast ones, one on each core, on one node.

    Returns:
        Their numbers, ascending.
    """
    return tuple(sorted(cpu.number for cpu in _by_preference(cpus)[:count]))


def set_aside(cpus: Sequence[Cpu], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the CPUs that only measurements use.

    If there are enough cores, each of these CPUs has its own core. Otherwise they fill whole cores. If that is not
    possible either, they are the last CPUs, and may share a core with other stages.

    Args:
        cpus: The CPUs to choose from.
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


def shares_core(cpus: Iterable[Cpu], others: Collection[int]) -> tuple[int, ...]:
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


def _by_preference(cpus: Iterable[Cpu]) -> list[Cpu]:
    cpus = list(cpus)
    members = {cpu.number for cpu in cpus}
    size = {node: sum(cpu.node == node for cpu in cpus) for node in {cpu.node for cpu in cpus}}

    def key(cpu: Cpu) -> tuple[object, ...]:
        thread = sum(other < cpu.number for other in cpu.core if other in members)
        return cpu.efficient, thread, -size[cpu.node], cpu.node, cpu.number

    return sorted(cpus, key=key)


def _cores(cpus: Sequence[Cpu]) -> list[tuple[int, ...]]:
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
