"""How long stages take on each node of a cluster, compared with the same stages on the others."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.storage.formats import Kind

_SLOW = 3.0  # a node is slow if its stages take this many times as long
_STAGES = 8  # how many of a node's last stages count
_LEAST = 4  # how many there must be
_TASKS = 4096  # how many tasks are remembered


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
            if len(ratios) >= _LEAST
        }
        return {kind: round(median) for kind, median in sorted(medians.items()) if median >= _SLOW}

    def forget(self, node: str) -> None:
        """Forget a node that is gone: another machine may come under its name."""
        self._ratios.pop(node, None)
        for nodes in self._seconds.values():
            nodes.pop(node, None)
