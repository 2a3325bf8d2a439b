"""Find out what makes measured times worse than necessary on this machine, and what to do about it. For `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine.cgroups import ROOT, cpu_quota, memory_limit, text_of
from autotune.machine.hardware import LogicalCpu, allowed_cpus, shares_core, topology
from autotune.machine.leases import private_reason

_MAX_STOLEN = 0.01  # of all CPU time since the machine was started
_LITTLE_MEMORY = 4 << 30


@dataclass(frozen=True)
class Remark:
    """A fact about this machine.

    Attributes:
        remedy: What to do about it; empty if it does no harm.
    """

    fact: str
    remedy: str = ""


@dataclass(frozen=True)
class Survey:
    """The part of this machine that tuning uses.

    Attributes:
        shared: The CPUs of all stages but measurements.
        measured: The CPUs of measurements. They are the shared ones if measurements have no CPUs of their own.
        lock_folder: The folder of the locks that all processes of this machine must see.
        allowed: The CPUs that this process may run on.
    """

    shared: tuple[int, ...]
    measured: tuple[int, ...]
    lock_folder: Path
    allowed: tuple[int, ...] = field(default_factory=allowed_cpus)
    root: Path = ROOT

    def remarks(self) -> list[Remark]:
        """Return all remarks, the most harmful ones first."""
        looks: tuple[Callable[[], Iterator[Remark]], ...] = (
            self._locks,
            self._quota,
            self._memory,
            self._threads,
            self._kinds,
            self._nodes,
            self._governors,
            self._stolen,
        )
        return [remark for look in looks for remark in look()]

    @property
    def _cpus(self) -> tuple[LogicalCpu, ...]:
        return topology(tuple(sorted({*self.shared, *self.measured})), self.root)

    def _locks(self) -> Iterator[Remark]:
        if reason := private_reason(self.lock_folder, self.root):
            remedy = "set [machine] lock_dir to a folder that all processes share, or measurements disturb each other"
            yield Remark(f"the locks are seen by few: {reason}", remedy)

    def _quota(self) -> Iterator[Remark]:
        if (quota := cpu_quota(self.root)) is not None and quota.amount < len(self.allowed):
            fact = f"a quota of {quota.amount:g} CPUs' time on {len(self.allowed)} CPUs ({quota.file})"
            yield Remark(
                fact, "give it its own CPUs instead (a cpuset): a container is stopped when its quota is used up"
            )

    def _memory(self) -> Iterator[Remark]:
        if (limit := memory_limit(self.root)) is not None:
            remedy = "raise it to 4 GiB or more" if limit.amount < _LITTLE_MEMORY else ""
            yield Remark(f"a limit of {limit.amount / 2**30:.1f} GiB of memory ({limit.file})", remedy)

    def _threads(self) -> Iterator[Remark]:
        """Yield remarks on CPUs for measurements that share a core with other stages or with each other."""
        kept = topology(self.measured, self.root)
        if self.shared != self.measured and (shared := shares_core(kept, self.shared)):
            fact = f"measurements on cpu {_listed(shared)} share a core with other stages"
            yield Remark(fact, "set [machine] measure_cpus so that it fills whole cores, or to 0")
        cores = len({cpu.core for cpu in kept})
        if cores < len(kept):
            fact = f"measurements use {len(kept)} hyper-threads of {cores} cores"
            yield Remark(fact, f"[measure] threads = {cores} is steadier and may be faster")

    def _kinds(self) -> Iterator[Remark]:
        kept = topology(self.measured, self.root)
        slow = [cpu.number for cpu in kept if cpu.efficient]
        if slow and len(slow) < len(kept):
            fast = len(self._cpus) - sum(cpu.efficient for cpu in self._cpus)
            fact = f"measurements use efficiency cores too: cpu {_listed(slow)}"
            yield Remark(
                fact, f"[machine] cpu_slots = {fast} uses the fast ones only: a kernel waits for its slowest thread"
            )

    def _nodes(self) -> Iterator[Remark]:
        nodes = sorted({cpu.node for cpu in topology(self.measured, self.root)})
        if len(nodes) > 1:
            fact = f"measurements use {len(nodes)} NUMA nodes, {_listed(nodes)}"
            command = f"numactl --cpunodebind={nodes[0]} --membind={nodes[0]}"
            yield Remark(
                fact, f"start the daemon with {command}, or set [machine] measure_cpus to fewer CPUs than a node has"
            )

    def _governors(self) -> Iterator[Remark]:
        files = [self.root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor" for cpu in self.measured]
        others = {text for file in files if (text := text_of(file).strip())} - {"performance"}
        if others:
            fact = f"the clock of the CPUs follows the governor {', '.join(sorted(others))}"
            yield Remark(fact, "times vary with it; run: sudo cpupower frequency-set -g performance")

    def _stolen(self) -> Iterator[Remark]:
        first, *_ = [*text_of(self.root / "proc/stat").splitlines(), ""]
        counts = [int(count) for count in first.split()[1:9]]
        if len(counts) == 8 and counts[7] > _MAX_STOLEN * sum(counts):
            share = counts[7] / sum(counts)
            yield Remark(
                f"other virtual machines took {share:.0%} of its CPU time so far", "use a machine with CPUs of its own"
            )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
