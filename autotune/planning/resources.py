"""Which CPUs and devices are free. Stages take them as they start and give them back as they end."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autotune.planning.view import MachineResources, measures_on_cpus


@dataclass(frozen=True)
class Allocation:
    """The CPUs and the device that a stage would get. `device` is empty except for a measurement."""

    cpus: tuple[int, ...]
    device: str = ""


class Slots:
    """Numbered slots. A slot has one holder, or more if it is over-committed. The lowest free slot goes first."""

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self.free = count
        self._heap = list(range(count))  # may contain slots that are held, which are skipped

    def first(self) -> int | None:
        """Return the lowest free slot; None if all are held."""
        while self._heap and self.holders[self._heap[0]]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take(self, slot: int) -> None:
        """Add a holder to a slot."""
        self.free -= not self.holders[slot]
        self.holders[slot] += 1

    def give_back(self, slot: int) -> None:
        """Remove a holder from a slot."""
        self.holders[slot] -= 1
        if not self.holders[slot]:
            self.free += 1
            heapq.heappush(self._heap, slot)


class MachinePool:
    """The CPUs of one machine that stages share, those set aside for measurements, and its devices of each kind."""

    def __init__(self, machine: MachineResources) -> None:
        self.machine = machine
        self._shared = Slots(len(machine.shared_cpus))
        self._cpu_slots = {cpu: slot for slot, cpu in enumerate(machine.shared_cpus)}
        self._devices = {kind: Slots(len(names)) for kind, names in machine.kinds.items()}
        self._device_slots = {
            name: (kind, slot) for kind, names in machine.kinds.items() for slot, name in enumerate(names)
        }

    @property
    def free_cpus(self) -> int:
        """How many of the shared CPUs are free."""
        return self._shared.free

    @property
    def holders(self) -> int:
        """How many stages hold its shared CPUs, counted for each CPU."""
        return sum(self._shared.holders)

    def free_devices(self, kind: str) -> int:
        """Return how many devices of a kind are free."""
        return self._devices[kind].free if kind in self._devices else 0

    def for_cpu_stage(self) -> Allocation | None:
        """Return a free CPU for a search, build or training; None if there is none."""
        slot = self._shared.first()
        return None if slot is None else Allocation((self.machine.shared_cpus[slot],))

    def for_measurement(self, kind: str) -> Allocation | None:
        """Return a free device of a kind with the CPUs that measuring on it takes; None if one of them is lacking."""
        slot = self._devices[kind].first() if kind in self._devices else None
        if slot is None:
            return None
        device = self.machine.kinds[kind][slot]
        if measures_on_cpus(kind):
            drained = not self.machine.drains or self._shared.free == len(self.machine.cpus)
            return Allocation(self.machine.cpu_device, device) if drained else None
        cpu = self.for_cpu_stage()
        return cpu and Allocation(cpu.cpus, device)

    def overcommitted(self, kind: str, measures: bool) -> Allocation:
        """Return all CPUs, free or not, and for a measurement the device of a kind with the fewest holders.

        Args:
            kind: The kind of device, which the machine has if `measures` is true.
            measures: Whether the stage is a measurement.
        """
        if not measures:
            return Allocation(self.machine.shared_cpus)
        names = self.machine.kinds[kind]
        holders = self._devices[kind].holders
        slot = min(range(len(names)), key=lambda slot: (holders[slot], slot))
        cpus = self.machine.cpu_device if measures_on_cpus(kind) else self.machine.shared_cpus
        return Allocation(cpus, names[slot])

    def take(self, cpus: Iterable[int], device: str) -> None:
        """Take CPUs and a device. Names that the machine does not share are ignored."""
        for cpu in cpus:
            if cpu in self._cpu_slots:
                self._shared.take(self._cpu_slots[cpu])
        if device in self._device_slots:
            kind, slot = self._device_slots[device]
            self._devices[kind].take(slot)

    def give_back(self, cpus: Iterable[int], device: str) -> None:
        """Give back what `take` took."""
        for cpu in cpus:
            if cpu in self._cpu_slots:
                self._shared.give_back(self._cpu_slots[cpu])
        if device in self._device_slots:
            kind, slot = self._device_slots[device]
            self._devices[kind].give_back(slot)


class ResourcePool:
    """The CPUs and devices of all machines. A stage gets its CPUs and its device on one of them."""

    def __init__(self, machine: MachineResources) -> None:
        self._pools = [MachinePool(part) for part in machine.parts]

    def free_devices(self, kind: str) -> int:
        """Return how many devices of a kind are free."""
        return sum(pool.free_devices(kind) for pool in self._pools)

    def to_drain(self, kind: str) -> list[MachinePool]:
        """Return the machines that must run nothing else for a measurement on CPUs of a kind, and do not measure now.

        Those come first that have the most free CPUs.
        """
        pools = [pool for pool in self._pools if pool.machine.drains and pool.free_devices(kind)]
        return sorted(pools, key=lambda pool: -pool.free_cpus)

    def with_free_cpus(self, draining: Collection[MachinePool], among: bool) -> list[MachinePool]:
        """Return the machines with a free CPU: those that drain, if `among` is true, or the others."""
        return [pool for pool in self._pools if pool.free_cpus and (pool in draining) is among]

    @staticmethod
    def for_cpu_stage(pools: Iterable[MachinePool]) -> Allocation | None:
        """Return a CPU for a stage that only computes: of these machines, on that with the most free ones."""
        best = max(pools, key=lambda pool: pool.free_cpus, default=None)
        return best.for_cpu_stage() if best else None

    def for_measurement(self, kind: str, draining: Collection[MachinePool]) -> Allocation | None:
        """Return a free device of a kind with the CPUs that measuring on it takes; None if there is none.

        On a machine that drains, only a measurement on its CPUs starts.
        """
        for pool in self._pools:
            if pool not in draining or measures_on_cpus(kind):
                allocation = pool.for_measurement(kind)
                if allocation is not None:
                    return allocation
        return None

    def overcommitted(self, kind: str, measures: bool) -> Allocation:
        """Return CPUs, free or not, of the machine with the fewest holders; see `MachinePool.overcommitted`."""
        able = [pool for pool in self._pools if not measures or kind in pool.machine.kinds]
        return min(able or self._pools, key=lambda pool: pool.holders).overcommitted(kind, measures)

    def take(self, cpus: Iterable[int], device: str) -> None:
        """Take CPUs and a device. Names that no machine shares are ignored."""
        for pool in self._pools:
            pool.take(cpus, device)

    def give_back(self, cpus: Iterable[int], device: str) -> None:
        """Give back what `take` took."""
        for pool in self._pools:
            pool.give_back(cpus, device)
