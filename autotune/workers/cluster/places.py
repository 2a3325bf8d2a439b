"""The nodes of a cluster as the daemon sees them: the names of their CPUs and devices, and how slow each of them is.

For the planner all nodes are one machine of several parts, so their CPUs and devices need different names. A kind of
device says what measures, so that times of different hardware never get into one log. How slow a node is, is told by
the stages that ran on it, compared with the same stages on the others.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune import devices
from autotune.config import Config
from autotune.devices import Board, Cpu, Gpu
from autotune.planning.view import device_kind as device_kind_of
from autotune.planning.view import measures_on_cpus
from autotune.processes.messages import RunStage
from autotune.storage.daemon_info import CPUS_APART, ClusterNode
from autotune.storage.formats import SIMULATED, Kind
from autotune.workers.cluster.host import NodeFacts

_SLOW = 3.0  # a node is slow if its stages take this many times as long
_STAGES = 8  # how many of a node's last stages count
_MIN_RATIOS = 4  # how many there must be
_TASKS = 4096  # how many tasks are remembered


@dataclass(frozen=True)
class Place:
    """One node, as the daemon numbers it.

    Attributes:
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


@dataclass(frozen=True)
class Timed:
    """What took how long. Only stages of one kind, task and job are compared: others differ in what they do."""

    kind: Kind
    job: str
    task: int


@dataclass
class Pace:
    """Takes the seconds of stages, and tells which nodes are slow at what."""

    _seconds: OrderedDict[Timed, dict[str, deque[float]]] = field(default_factory=OrderedDict)
    _ratios: dict[str, dict[Kind, deque[float]]] = field(default_factory=dict)

    def took(self, node: str, what: Timed, seconds: float) -> None:
        """Take in that a stage was done on a node."""
        nodes = self._seconds.setdefault(what, {})
        self._seconds.move_to_end(what)
        if len(self._seconds) > _TASKS:
            self._seconds.popitem(last=False)
        nodes.setdefault(node, deque(maxlen=_STAGES)).append(seconds)
        others = [there for name, seconds_there in nodes.items() if name != node for there in seconds_there]
        if others and (usual := statistics.median(others)) > 0:
            ratios = self._ratios.setdefault(node, {}).setdefault(what.kind, deque(maxlen=_STAGES))
            ratios.append(seconds / usual)

    def slowness(self, node: str) -> Mapping[Kind, int]:
        """Return how many times as long the stages of each kind take on a node as on others, where that is much."""
        medians = {
            kind: statistics.median(ratios)
            for kind, ratios in self._ratios.get(node, {}).items()
            if len(ratios) >= _MIN_RATIOS
        }
        return {kind: round(median) for kind, median in sorted(medians.items()) if median >= _SLOW}

    def forget(self, node: str) -> None:
        """Forget a node that is gone: another machine may come under its name."""
        self._ratios.pop(node, None)
        for nodes in self._seconds.values():
            nodes.pop(node, None)
