"""Which CPUs and devices are free. Stages take them as they start and give them back as they end."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.planning.view import MachineResources


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


class ResourcePool:
    """The CPUs that stages share, the CPUs set aside for measurements, and the devices of each kind."""

    def __init__(self, machine: MachineResources) -> None:
        self.machine = machine
        self._shared = Slots(len(machine.shared_cpus))
        self._cpu_slots = {cpu: slot for slot, cpu in enumerate(machine.shared_cpus)}
        self._devices = {kind: Slots(len(names)) for kind, names in machine.kinds.items()}
        self._device_slots = {
            name: (kind, slot) for kind, names in machine.kinds.items() for slot, name in enumerate(names)
        }

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
        if kind == "cpu":
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
        names, holders = self.machine.kinds[kind], self._devices[kind].holders
        slot = min(range(len(names)), key=lambda slot: (holders[slot], slot))
        return Allocation(self.machine.cpu_device if kind == "cpu" else self.machine.shared_cpus, names[slot])

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
