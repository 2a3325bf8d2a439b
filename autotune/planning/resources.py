"""What of the machine is free: CPUs and devices, taken and given back as stages start and end."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.planning.view import Machine


@dataclass(frozen=True)
class Grant:
    """What a stage would get."""

    cpus: tuple[int, ...]
    device: str = ""


class Slots:
    """Numbered things that one holder has at a time, unless over-committed. The least free number goes first."""

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self.free = count
        self._heap = list(range(count))  # may name slots that are held: they are skipped

    def first(self) -> int | None:
        while self._heap and self.holders[self._heap[0]]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take(self, slot: int) -> None:
        self.free -= not self.holders[slot]
        self.holders[slot] += 1

    def give(self, slot: int) -> None:
        self.holders[slot] -= 1
        if not self.holders[slot]:
            self.free += 1
            heapq.heappush(self._heap, slot)


class Pool:
    """The CPUs that stages share, those set aside for measuring, and the devices of each kind."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shared = Slots(len(machine.shared_cpus))
        self._slot = {cpu: slot for slot, cpu in enumerate(machine.shared_cpus)}
        self._devices = {kind: Slots(len(names)) for kind, names in machine.kinds.items()}
        self._place = {name: (kind, slot) for kind, names in machine.kinds.items() for slot, name in enumerate(names)}

    @property
    def free_cpus(self) -> int:
        return self._shared.free

    def free_devices(self, kind: str) -> int:
        return self._devices[kind].free if kind in self._devices else 0

    def preparing(self) -> Grant | None:
        """A CPU for a search, a build or a training."""
        slot = self._shared.first()
        return None if slot is None else Grant((self.machine.shared_cpus[slot],))

    def measuring(self, kind: str) -> Grant | None:
        """A device of a kind, with the CPUs that measuring on it takes."""
        slot = self._devices[kind].first() if kind in self._devices else None
        if slot is None:
            return None
        device = self.machine.kinds[kind][slot]
        if kind == "cpu":
            whole = self.machine.cpu_device
            drained = not self.machine.drains or self._shared.free == len(self.machine.cpus)
            return Grant(whole, device) if drained else None
        cpu = self.preparing()
        return cpu and Grant(cpu.cpus, device)

    def overcommitted(self, kind: str, measures: bool) -> Grant:
        """Every CPU, and the device of a kind that the fewest measure on: for those who wait for nobody."""
        if not measures:
            return Grant(self.machine.shared_cpus)
        names, holders = self.machine.kinds[kind], self._devices[kind].holders
        slot = min(range(len(names)), key=lambda slot: (holders[slot], slot))
        return Grant(self.machine.cpu_device if kind == "cpu" else self.machine.shared_cpus, names[slot])

    def take(self, cpus: Iterable[int], device: str) -> None:
        for cpu in cpus:
            if cpu in self._slot:
                self._shared.take(self._slot[cpu])
        if device in self._place:
            kind, slot = self._place[device]
            self._devices[kind].take(slot)

    def give(self, cpus: Iterable[int], device: str) -> None:
        for cpu in cpus:
            if cpu in self._slot:
                self._shared.give(self._slot[cpu])
        if device in self._place:
            kind, slot = self._place[device]
            self._devices[kind].give(slot)
