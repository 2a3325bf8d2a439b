"""How busy the resources were in a simulation, why they were idle when they were, and what no plan could beat."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from autotune.planning.board import Board
from autotune.planning.scenario import SimulatedJob
from autotune.planning.view import Kind, Machine, RunningView, StageId

NO_WORK = "no job left"
PREPARING = "batches still prepared"
NO_CPU = "batches wait for a CPU"
RESULTS = "results awaited"
DRAINED = "drained for a measurement"
HELD_BACK = "rounds held back"


@dataclass
class Usage:
    """Seconds that resources were busy, and idle by cause, by kind of resource: `CPUs`, `cuda`..."""

    machine: Machine
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    idle: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    _cpus: int = 0
    _devices: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def change(self, item: RunningView, device: str, by: int) -> None:
        """A stage starts (1) or ends (-1)."""
        if item.kind == "measure":
            self._devices[device] += by
        self._cpus += by * self._width(item, device)

    def _width(self, item: RunningView, device: str) -> int:
        """How many CPUs a stage uses; where it has not leased those it is given, it may use one of them."""
        whole = item.kind == "measure" and device == "cpu"
        return len(self.machine.cpu_device) if whole else 1

    def spend(self, seconds: float, board: Board, active: Mapping[str, int]) -> None:
        """Account for a stretch in which nothing changed; `active` counts the jobs by kind of device."""
        if seconds <= 0:
            return
        total = len(self.machine.cpus)
        self._share("CPUs", total, min(total, self._cpus), seconds, partial(_why_cpu, board, active))
        for kind, names in self.machine.kinds.items():
            if kind != "cpu":
                busy = min(len(names), self._devices[kind])
                self._share(kind, len(names), busy, seconds, partial(_why_device, board, active, kind))

    def _share(self, name: str, total: int, busy: int, seconds: float, why: Callable[[], str]) -> None:
        self.busy[name] += busy * seconds
        if busy < total:
            self.idle[name][why()] += (total - busy) * seconds

    def counts(self) -> dict[str, int]:
        """How many there are of each resource."""
        found = {kind: len(names) for kind, names in self.machine.kinds.items() if kind != "cpu"}
        return {"CPUs": len(self.machine.cpus), **found}


def _why_cpu(board: Board, active: Mapping[str, int]) -> str:
    if not any(active.values()):
        return NO_WORK
    lane = board.lanes.get("cpu")
    if lane is not None and lane.gathered and board.machine.drains:
        return DRAINED
    if board.top("proceed") or board.top("begin"):
        return HELD_BACK
    return RESULTS


def _why_device(board: Board, active: Mapping[str, int], kind: str) -> str:
    if not active.get(kind):
        return NO_WORK
    lane = board.lanes.get(kind)
    if lane is not None and lane.gathered and lane.steps["measure"].alive:
        return NO_CPU
    return PREPARING


@dataclass
class Bound:
    """The least makespan: the busiest resource's work over its count, or the longest chain of any job."""

    machine: Machine
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _rounds: dict[int, dict[tuple[int, int], dict[Kind, float]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, id: StageId, kind: Kind, device: str, seconds: float) -> None:
        """A stage, with the time it takes when nobody is in its way."""
        whole = kind == "measure" and device == "cpu"
        self.work["CPUs"] += seconds * (len(self.machine.cpu_device) if whole else 1)
        if kind == "measure":
            self.work[device] += seconds
        self._rounds[id.job].setdefault((id.task, id.round), {})[kind] = seconds

    def seconds(self, jobs: Iterable[SimulatedJob]) -> float:
        counts = {kind: len(names) for kind, names in self.machine.kinds.items()} | {"CPUs": len(self.machine.cpus)}
        busiest = max((work / counts[name] for name, work in self.work.items() if counts.get(name)), default=0.0)
        return max(busiest, *(job.submitted_at + self._chain(job) for job in jobs), 0.0)

    def _chain(self, job: SimulatedJob) -> float:
        """The shortest that a job can take: some task has at least an equal share of its rounds, one after another.

        Of a round, only searching and building must end before the next round of the task begins.
        """
        rounds = list(self._rounds.get(job.id, {}).values())
        if not rounds:
            return 0.0
        least = math.ceil(math.ceil(job.trials / job.trials_per_round) / max(1, job.tasks))
        fronts = sorted(found.get("search", 0.0) + found.get("build", 0.0) for found in rounds)
        last = min(found.get("measure", 0.0) + found.get("train", 0.0) for found in rounds)
        return sum(fronts[:least]) + last
