"""The planner's input and output: frozen pictures of jobs, stages and the machine, and the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

from autotune.reasons import Reason

Kind = Literal["search", "build", "measure", "train", "compile", "confirm"]
# The stages that have a device to themselves.
ON_DEVICE: frozenset[Kind] = frozenset(("measure", "confirm"))


class StageId(NamedTuple):
    """One round of one task of one job. At any moment a round is at exactly one stage.

    A task may have several rounds in flight: with lookahead, the next round is searched while one is measured.
    """

    job: int
    task: int
    round: int


@dataclass(frozen=True)
class TaskView:
    """One task of a job.

    Attributes:
        key: Names the tuning log. Tasks of several jobs may share a log.
        weight: How often the task occurs in the model.
        trials: Trials that count towards the job's budget.
        running_best: The best time in microseconds after each trial of the log; infinity before the first success.
        exhausted: The search has no new candidates.
        set_aside: Stages of the task failed too often; nothing more of it runs.
        gflop: Its floating-point work, in 1e9 operations; 0 if that is not known.
    """

    key: str
    weight: int
    trials: int = 0
    running_best: tuple[float, ...] = ()
    exhausted: bool = False
    set_aside: bool = False
    gflop: float = 0.0

    def best_before(self, trials: int) -> float:
        """Return the best time in microseconds as it was `trials` trials ago; infinity where there was none."""
        index = len(self.running_best) - 1 - trials
        return self.running_best[index] if index >= 0 else math.inf

    @property
    def best(self) -> float:
        """The best time in microseconds; infinity where there is none."""
        return self.best_before(0)

    @property
    def speed(self) -> float:
        """The work over the best time, in 1e9 operations a microsecond; 0 where either is not known."""
        return self.gflop / self.best if self.best > 0 else 0.0


@dataclass(frozen=True)
class StageView:
    """The stage that a round is at.

    `candidates` is how many trials the stage will add. It is 0 for a search that has not started.
    """

    id: StageId
    kind: Kind
    candidates: int = 0


@dataclass(frozen=True)
class JobView:
    """One active job. All times are epoch seconds.

    Attributes:
        device: The kind of device to measure on, such as `cpu` or `cuda`. Any free device of the kind will do.
        trials: The budget.
        trials_per_round: The size of a full batch.
        patience: Rounds without enough improvement after which a task counts as converged; 0 for never.
        min_gain: The share by which the best time must fall within `patience` rounds.
        priority: Jobs of a higher priority go first; see `policy.py`.
        submitted_at: When the job was submitted.
        served_at: When a stage of the job last started; before that, when the job was submitted.
        deadline: When the job should have ended; None for no deadline.
        time_used: Whether its stages have run for as long as they may.
        settled: Whether it ends because more trials would gain little.
        has_stop_at: Whether it ends when the whole model is as fast as it has to be.
        stop_at_met: Whether the whole model was found to be as fast as it has to be.
    """

    id: int
    device: str
    tasks: tuple[TaskView, ...]
    stages: tuple[StageView, ...]
    trials: int
    trials_per_round: int
    patience: int
    min_gain: float
    priority: int = 0
    submitted_at: float = 0.0
    served_at: float = 0.0
    deadline: float | None = None
    time_used: bool = False
    settled: bool = False
    has_stop_at: bool = False
    stop_at_met: bool = False

    @cached_property
    def trials_done(self) -> int:
        """Trials used of the budget."""
        return sum(task.trials for task in self.tasks)

    @cached_property
    def fastest(self) -> float:
        """The highest speed of a task."""
        return max((task.speed for task in self.tasks), default=0.0)

    @cached_property
    def live_stages(self) -> tuple[StageView, ...]:
        """The stages that may still run: all but those of tasks that were set aside."""
        return tuple(stage for stage in self.stages if not self.tasks[stage.id.task].set_aside)


@dataclass(frozen=True)
class RunningView:
    """A stage that a worker runs.

    Attributes:
        count: How many candidates a search was asked for; 0 for the other stages.
        device: The device that a measurement runs on, such as `cuda:1`. Empty means any device of the job's kind.
        started_at: Epoch seconds.
    """

    id: StageId
    kind: Kind
    cpus: tuple[int, ...]
    count: int = 0
    device: str = ""
    started_at: float = 0.0


@dataclass(frozen=True)
class MachineResources:
    """The CPUs and devices that stages may use.

    Attributes:
        devices: The devices to measure on, such as `cpu`, `cuda:0`, `cuda:1`.
        measure_cpus: CPUs set aside for measurements on the `cpu`. If empty, such a measurement takes all CPUs.
        nodes: The machines that these are on, if there are several. Their CPUs and devices have different names, and a
            stage has its CPUs and its device on one of them.
    """

    cpus: tuple[int, ...]
    devices: tuple[str, ...] = ("cpu",)
    measure_cpus: tuple[int, ...] = ()
    nodes: tuple[MachineResources, ...] = ()

    @classmethod
    def of_nodes(cls, nodes: Iterable[MachineResources]) -> MachineResources:
        """Return several machines as one."""
        nodes = tuple(nodes)
        cpus = chain(*(node.cpus for node in nodes))
        kept = chain(*(node.measure_cpus for node in nodes))
        return cls(tuple(cpus), tuple(chain(*(node.devices for node in nodes))), tuple(kept), nodes)

    @cached_property
    def parts(self) -> tuple[MachineResources, ...]:
        """The machines, each by itself."""
        return self.nodes or (self,)

    @cached_property
    def shared_cpus(self) -> tuple[int, ...]:
        """The CPUs for every stage except measurements on the `cpu`."""
        if self.nodes:
            return tuple(chain(*(node.shared_cpus for node in self.nodes)))
        kept = set(self.measure_cpus)
        return tuple(cpu for cpu in self.cpus if cpu not in kept) or self.cpus

    @cached_property
    def cpu_device(self) -> tuple[int, ...]:
        """The CPUs that a measurement on the `cpu` has to itself: of several machines, those of the largest."""
        if self.nodes:
            return max((node.cpu_device for node in self.nodes), key=len)
        return self.cpus if self.shared_cpus == self.cpus else self.measure_cpus

    @cached_property
    def drains(self) -> bool:
        """Whether all other stages must end before a measurement on the `cpu`, because both use the same CPUs."""
        return any(node.drains for node in self.nodes) if self.nodes else self.cpu_device == self.cpus

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The devices by kind, in the order of `devices`."""
        by_kind: dict[str, list[str]] = {}
        for device in self.devices:
            by_kind.setdefault(device_kind(device), []).append(device)
        return {kind: tuple(devices) for kind, devices in by_kind.items()}

    @cached_property
    def cpu_kinds(self) -> tuple[str, ...]:
        """The kinds of devices that are the CPUs of a machine."""
        return tuple(kind for kind in self.kinds if measures_on_cpus(kind))


def measures_on_cpus(kind: str) -> bool:
    """Return whether devices of a kind are the CPUs of a machine: `cpu`, or `cpu-` and which ones."""
    return kind == "cpu" or kind.startswith("cpu-")


def device_kind(device: str) -> str:
    """Return the kind of a device: `cuda` for `cuda:1`."""
    return device.partition(":")[0]


@dataclass(frozen=True)
class Start:
    """A stage to start now.

    Attributes:
        cpus: The CPUs to run it on.
        count: How many candidates to ask a search for; 0 for the other stages.
        device: The device of a measurement; empty for the other stages.
        lease: Whether the stage leases its CPUs and device. If not, it shares them with others.
    """

    stage: StageView
    cpus: tuple[int, ...]
    count: int = 0
    device: str = ""
    lease: bool = True


@dataclass(frozen=True)
class StagePlan:
    """What to start now.

    Attributes:
        waits: For each job that starts and runs nothing, why it waits.
        late: The jobs with a ready stage that was not started because it would not have ended in time.
    """

    starts: tuple[Start, ...]
    waits: dict[int, Reason]
    late: frozenset[int] = frozenset()
