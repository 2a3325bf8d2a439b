"""How busy the resources were in a simulation, why they were idle, and the makespan that no plan could beat."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from autotune.planning.planner_state import PlannerState
from autotune.planning.scenario import SimulatedJob
from autotune.planning.view import Kind, MachineResources, RunningView, StageId

NO_WORK = "no job left"
PREPARING = "batches still prepared"
NO_CPU = "batches wait for a CPU"
RESULTS = "results awaited"
DRAINED = "drained for a measurement"
HELD_BACK = "rounds held back"


@dataclass
class ResourceUsage:
    """Seconds by kind of resource (`CPUs`, `cuda`, ...), summed over all resources of the kind.

    `busy` are those in which they were used, `idle` those in which they were not, by cause.
    """

    machine: MachineResources
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    idle: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    _cpus: int = 0
    _devices: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def change(self, stage: RunningView, device: str, by: int) -> None:
        """Count a stage that starts or ends.

        Args:
            device: The kind of device that its job measures on.
            by: 1 if it starts, -1 if it ends.
        """
        if stage.kind == "measure":
            self._devices[device] += by
        whole = stage.kind == "measure" and device == "cpu"
        # Every other stage uses one CPU, even one without a lease that may use any of them.
        self._cpus += by * (len(self.machine.cpu_device) if whole else 1)

    def spend(self, seconds: float, state: PlannerState, active: Mapping[str, int]) -> None:
        """Add a stretch of time in which nothing changed.

        Args:
            seconds: Its length.
            state: The planner's state, which says why resources were idle.
            active: How many jobs are active, by kind of device.
        """
        if seconds <= 0:
            return
        total = len(self.machine.cpus)
        self._add("CPUs", total, min(total, self._cpus), seconds, partial(_why_cpu, state, active))
        for kind, names in self.machine.kinds.items():
            if kind != "cpu":
                busy = min(len(names), self._devices[kind])
                self._add(kind, len(names), busy, seconds, partial(_why_device, state, active, kind))

    def _add(self, name: str, total: int, busy: int, seconds: float, why: Callable[[], str]) -> None:
        self.busy[name] += busy * seconds
        if busy < total:
            self.idle[name][why()] += (total - busy) * seconds

    def counts(self) -> dict[str, int]:
        """Return how many resources of each kind there are."""
        devices = {kind: len(names) for kind, names in self.machine.kinds.items() if kind != "cpu"}
        return {"CPUs": len(self.machine.cpus), **devices}


def _why_cpu(state: PlannerState, active: Mapping[str, int]) -> str:
    if not any(active.values()):
        return NO_WORK
    queues = state.queues.get("cpu")
    if queues is not None and queues.ready_batches and state.machine.drains:
        return DRAINED
    if state.first("continue") or state.first("begin"):
        return HELD_BACK
    return RESULTS


def _why_device(state: PlannerState, active: Mapping[str, int], kind: str) -> str:
    if not active.get(kind):
        return NO_WORK
    queues = state.queues.get(kind)
    if queues is not None and queues.ready_batches and queues.queues["measure"].count:
        return NO_CPU
    return PREPARING


@dataclass
class LowerBound:
    """A lower bound of the makespan.

    It is the work of the busiest kind of resource over the number of these resources, or the longest chain of stages
    of any job, whichever is longer.
    """

    machine: MachineResources
    _work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _rounds: dict[int, dict[tuple[int, int], dict[Kind, float]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, id: StageId, kind: Kind, device: str, seconds: float) -> None:
        """Add a stage.

        Args:
            device: The kind of device that its job measures on.
            seconds: How long it takes if it shares nothing.
        """
        whole = kind == "measure" and device == "cpu"
        self._work["CPUs"] += seconds * (len(self.machine.cpu_device) if whole else 1)
        if kind == "measure":
            self._work[device] += seconds
        self._rounds[id.job].setdefault((id.task, id.round), {})[kind] = seconds

    def seconds(self, jobs: Iterable[SimulatedJob]) -> float:
        """Return the bound for jobs all of whose stages were added."""
        counts = {kind: len(names) for kind, names in self.machine.kinds.items()} | {"CPUs": len(self.machine.cpus)}
        busiest = max((work / counts[name] for name, work in self._work.items() if counts.get(name)), default=0.0)
        return max(busiest, *(job.submitted_at + self._chain(job) for job in jobs), 0.0)

    def _chain(self, job: SimulatedJob) -> float:
        """Return the shortest time that a job can take.

        Some task has at least an equal share of the job's rounds. They run one after another, but only the search and
        the build of a round must end before the next round of the task begins.
        """
        rounds = list(self._rounds.get(job.id, {}).values())
        if not rounds:
            return 0.0
        least = math.ceil(math.ceil(job.trials / job.trials_per_round) / max(1, job.tasks))
        prepared = sorted(stages.get("search", 0.0) + stages.get("build", 0.0) for stages in rounds)
        last = min(stages.get("measure", 0.0) + stages.get("train", 0.0) for stages in rounds)
        return sum(prepared[:least]) + last
