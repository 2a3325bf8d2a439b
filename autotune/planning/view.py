"""What the planner sees: a frozen picture of jobs, of the stages that run, and of the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from autotune.reasons import Reason

Kind = Literal["search", "build", "measure", "train"]


class StageId(NamedTuple):
    """One round of one task of one job: at any moment it is at exactly one stage.

    A task may have several rounds on their way: with lookahead the next is searched while one is measured.
    """

    job: int
    task: int
    round: int


@dataclass(frozen=True)
class TaskView:
    """One task. `running_best` holds the best time in microseconds after each trial, infinity before a success.

    `trials` are those that count towards the job's budget; `key` names the tuning log, which jobs may share.
    """

    key: str
    weight: int
    trials: int = 0
    running_best: tuple[float, ...] = ()
    exhausted: bool = False
    set_aside: bool = False

    def best_before(self, trials: int) -> float:
        """The best time when the log was `trials` shorter; infinity where there was none."""
        index = len(self.running_best) - 1 - trials
        return self.running_best[index] if index >= 0 else math.inf

    @property
    def best(self) -> float:
        return self.best_before(0)


@dataclass(frozen=True)
class StageView:
    """The stage that a round is at. `candidates` is how many trials it will add; 0 for a search not begun."""

    id: StageId
    kind: Kind
    candidates: int = 0


@dataclass(frozen=True)
class JobView:
    """One active job.

    `device` is a kind of device: `cpu`, `cuda`; any free device of the kind will do. `served_at` is when a stage of
    the job last started, or when it was submitted; `deadline` is when it should have ended. All epoch seconds.
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

    @cached_property
    def trials_done(self) -> int:
        return sum(task.trials for task in self.tasks)

    @cached_property
    def live_stages(self) -> tuple[StageView, ...]:
        """The stages that may still run: not those of a task that was set aside."""
        return tuple(stage for stage in self.stages if not self.tasks[stage.id.task].set_aside)


@dataclass(frozen=True)
class RunningView:
    """A stage that a worker has. `device` is what a measurement runs on; unnamed it is any device of its kind."""

    id: StageId
    kind: Kind
    cpus: tuple[int, ...]
    count: int = 0
    device: str = ""
    started_at: float = 0.0


@dataclass(frozen=True)
class Machine:
    """The CPUs that stages share, and the devices that measure, such as `cpu`, `cuda:0`, `cuda:1`.

    `measure_cpus` are set aside for measurements on the `cpu`. Without any these take all CPUs at once.
    """

    cpus: tuple[int, ...]
    devices: tuple[str, ...] = ("cpu",)
    measure_cpus: tuple[int, ...] = ()

    @cached_property
    def shared_cpus(self) -> tuple[int, ...]:
        """The CPUs for every stage but measurements on the `cpu`."""
        return tuple(cpu for cpu in self.cpus if cpu not in set(self.measure_cpus)) or self.cpus

    @cached_property
    def cpu_device(self) -> tuple[int, ...]:
        """The CPUs that a measurement on the `cpu` has to itself."""
        return self.cpus if self.shared_cpus == self.cpus else self.measure_cpus

    @cached_property
    def drains(self) -> bool:
        """Whether a measurement on the `cpu` needs the CPUs that all other stages use."""
        return self.cpu_device == self.cpus

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The devices of each kind, in their order."""
        found: dict[str, tuple[str, ...]] = {}
        for device in self.devices:
            found[device_kind(device)] = (*found.get(device_kind(device), ()), device)
        return found


def device_kind(device: str) -> str:
    """`cuda:1` is of the kind `cuda`."""
    return device.partition(":")[0]


@dataclass(frozen=True)
class Start:
    """Start a stage on these CPUs, and a measurement on this device.

    `count` is how many candidates a search is asked for. Without a `lease` it shares what it runs on with others.
    """

    stage: StageView
    cpus: tuple[int, ...]
    count: int = 0
    device: str = ""
    lease: bool = True


@dataclass(frozen=True)
class Plan:
    """What to start now, and for each job that starts and runs nothing, why not.

    `late` are the jobs that had a stage to start which would not have ended in time.
    """

    starts: tuple[Start, ...]
    waits: dict[int, Reason]
    late: frozenset[int] = frozenset()
