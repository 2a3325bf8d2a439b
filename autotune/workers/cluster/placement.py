"""The names that the CPUs and devices of nodes have for the daemon, and which of them a job is measured on.

For the planner all nodes are one machine of several parts, so their CPUs and devices need different names. A kind of
device says what measures, so that times of different hardware never get into one log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune import devices
from autotune.config import Config
from autotune.devices import Board, Cpu, Gpu
from autotune.planning.view import device_kind as device_kind_of
from autotune.planning.view import measures_on_cpus
from autotune.processes.messages import RunStage
from autotune.storage.daemon_info import CPUS_APART, ClusterNode
from autotune.storage.formats import SIMULATED
from autotune.workers.cluster.host import NodeFacts


@dataclass(frozen=True)
class Place:
    """One node, as the daemon numbers it.

    Attributes:
        name: Of the node.
        number: Of the node; its CPUs are counted from `number` times `CPUS_APART` on.
        devices: The simulated devices of the node.
        boards: How many boards of each section [devices.NAME] the node measures on, by its name.
    """

    name: str
    number: int
    facts: NodeFacts
    devices: tuple[str, ...] = ()
    boards: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, number: int, facts: NodeFacts, resources: Mapping[str, float], config: Config) -> Place:
        """Return the place of a node. Its resources in Ray say which simulated devices and boards it has."""
        devices = tuple(device for device in config.devices if resources.get(device, 0) >= 1)
        boards = {name: min(board.count, int(resources.get(name, 0))) for name, board in config.boards.items()}
        return cls(name, number, facts, devices, {name: count for name, count in boards.items() if count})

    def serving(self, config: Config) -> ClusterNode:
        """Return what the daemon is told of the node."""
        cpus, kept = (tuple(map(self._outer, numbers)) for numbers in (self.facts.cpus, self.facts.measure_cpus))
        return ClusterNode(self.name, "serving", "", cpus, kept, tuple(self._names(config)))

    def local(self, request: RunStage, measured_on: str, config: Config) -> RunStage:
        """Return a stage with the names that the node itself has for its CPUs and its device.

        Args:
            measured_on: The kind of device that its job is measured on.
        """
        device = self._inner(request.device) if request.device else ""
        cross = measures_on_cpus(measured_on) and measured_on not in map(device_kind_of, self._names(config))
        return replace(request, cpus=tuple(cpu % CPUS_APART for cpu in request.cpus), device=device, cross=cross)

    def has(self, request: RunStage) -> bool:
        """Return whether the CPUs of a stage are on this node."""
        return all(cpu // CPUS_APART == self.number for cpu in request.cpus)

    def _names(self, config: Config) -> dict[str, str]:
        """Return the node's names of its devices, by the daemon's."""
        names = {f"{SIMULATED}:{self.name}/{device}": f"{SIMULATED}:{device}" for device in self.devices}
        if config.machine.simulated_cpus:
            return names
        facts = self.facts
        threads = config.measure.threads or len(facts.measure_cpus or facts.cpus)
        names[f"{Cpu.kind_of_model(facts.cpu, threads)}:{self.name}"] = "cpu"
        for gpu in facts.gpus:
            names[f"{Gpu.kind_of_model(gpu.name)}:{self.name}/{gpu.index}"] = f"{Gpu.family}:{gpu.index}"
        for section, count in self.boards.items():
            kind = Board.kind_of(section)
            names.update({f"{kind}:{self.name}/{index}": f"{kind}:{index}" for index in range(count)})
        return names

    def _inner(self, device: str) -> str:
        kind, _, rest = device.partition(":")
        _, _, number = rest.partition("/")
        own = devices.named(device).local_kind(kind)
        return f"{own}:{number}" if number else own

    def _outer(self, cpu: int) -> int:
        return self.number * CPUS_APART + cpu
