"""What the planner sees: a frozen picture of jobs, of the stages that run, and of the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["search", "build", "measure", "train"]


class StageId(NamedTuple):
    """One round of one task of one job: at any moment it is at exactly one stage."""

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
    """One active job."""

    id: int
    device: str
    tasks: tuple[TaskView, ...]
    stages: tuple[StageView, ...]
    trials: int
    trials_per_round: int
    patience: int
    min_gain: float
    priority: int = 0

    @property
    def trials_done(self) -> int:
        return sum(task.trials for task in self.tasks)

    @property
    def live_stages(self) -> tuple[StageView, ...]:
        """The stages that may still run: not those of a task that was set aside."""
        return tuple(stage for stage in self.stages if not self.tasks[stage.id.task].set_aside)


@dataclass(frozen=True)
class RunningView:
    """A stage that a worker has."""

    id: StageId
    kind: Kind
    cpus: tuple[int, ...]
    count: int = 0


@dataclass(frozen=True)
class Machine:
    """The CPUs that stages share, and the devices that measure: `cpu` is all of the CPUs at once."""

    cpus: tuple[int, ...]
    devices: frozenset[str] = frozenset({"cpu"})


@dataclass(frozen=True)
class Start:
    """Start a stage on these CPUs. `count` is how many candidates a search is asked for."""

    stage: StageView
    cpus: tuple[int, ...]
    count: int = 0


@dataclass(frozen=True)
class Plan:
    """What to start now, and for each job that starts and runs nothing, why not."""

    starts: tuple[Start, ...]
    waits: dict[int, str]
