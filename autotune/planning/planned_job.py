"""One job as the planner keeps it: its view, its running and ready stages, and its remaining work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from autotune.planning.budget import batch
from autotune.planning.estimates import Estimates, RemainingWork
from autotune.planning.gain import expected_gain, is_open
from autotune.planning.policy import STAGE_ORDER
from autotune.planning.queues import QueueName, ReadyStage
from autotune.planning.view import (
    ON_DEVICE,
    JobView,
    Kind,
    MachineResources,
    RunningView,
    StageId,
    StageView,
    TaskView,
    measures_on_cpus,
)
from autotune.reasons import Reason

# The first batch of a task is large enough that building and measuring it takes this many times as long as its search
# and training.
_MIN_BATCH_RATIO = 3.0


class _TaskGain(NamedTuple):
    """What one more trial of a task is expected to save, and whether it may be started, as long as the task is so."""

    task: TaskView
    gain: float
    is_open: bool


class PlannedJob:
    """One job. Call `update` after `view` or `running` has changed.

    Attributes:
        view: The job as the caller last described it.
        running: Its running stages.
        queued: Its stages in the queues of ready stages.
        shared: Its searches of tasks that other jobs have, too, in the queues of these, with the keys of their logs.
        claims: The tasks with a round in flight, by the key of their tuning log.
        task_rounds: How many rounds of each task are in flight.
        rounds_begun: How many rounds are in flight and do not only wait for a device that the machine lacks.
        trials_in_flight: Trials that these rounds will add.
        watched: The keys of tuning logs on which a change of claims may change the job's next search.
        remaining: Its remaining work, if the policy uses estimates.
        reason: Why the job waits; None if that is not known or must be worked out again.
    """

    def __init__(self, view: JobView, estimates: Estimates, round_seconds: Callable[[PlannedJob], float]) -> None:
        self.view = view
        self.running: dict[StageId, RunningView] = {}
        self.queued: dict[QueueName, ReadyStage] = {}
        self.shared: list[tuple[str, ReadyStage]] = []
        self.claims: dict[str, set[int]] = {}
        self.task_rounds: dict[int, int] = {}
        self.rounds_begun = 0
        self.trials_in_flight = 0
        self.watched: set[str] = set()
        self.remaining = RemainingWork()
        self.reason: Reason | None = None
        self._estimates = estimates
        self._round_seconds = round_seconds
        self._ready: dict[QueueName, list[StageView]] = {"measure": [], "continue": [], "begin": []}
        # Each value is kept with the task or tasks that it was worked out for.
        self._open_count: tuple[tuple[TaskView, ...], int] = ((), 0)
        self._gains_per_second: dict[int, tuple[TaskView, float]] = {}
        self._gains: dict[int, _TaskGain] = {}

    def update(self, has_device: bool) -> None:
        """Sort the stages and count the rounds anew.

        Args:
            has_device: Whether the machine has a device of the kind that the job measures on.
        """
        self.task_rounds = {}
        self.rounds_begun = 0
        self.trials_in_flight = sum(stage.count for stage in self.running.values() if stage.kind == "search")
        self._ready = {"measure": [], "continue": [], "begin": []}
        for stage in self.view.live_stages:
            if stage.kind == "build" or stage.kind == "measure":
                self.trials_in_flight += stage.candidates
            if stage.id not in self.running:
                self._sort(stage, has_device)
        for id in self.running:
            self.rounds_begun += 1
            self.task_rounds[id.task] = self.task_rounds.get(id.task, 0) + 1
        self.claims = {}
        for task in self.task_rounds:
            if task < len(self.view.tasks):
                self.claims.setdefault(self.view.tasks[task].key, set()).add(task)

    def _sort(self, stage: StageView, has_device: bool) -> None:
        if stage.kind == "search":
            self._ready["begin"].append(stage)
            return
        self.task_rounds[stage.id.task] = self.task_rounds.get(stage.id.task, 0) + 1
        # Rounds that wait for a device which the machine lacks must not keep others from beginning.
        self.rounds_begun += stage.kind not in ON_DEVICE or has_device
        self._ready["measure" if stage.kind in ON_DEVICE else "continue"].append(stage)

    def key_of(self, stage: StageView) -> str:
        """Return the key of the tuning log of a stage's task."""
        return self.view.tasks[stage.id.task].key

    @property
    def ready_batches(self) -> int:
        """How many batches are ready to be measured."""
        return len(self._ready["measure"])

    def next_measurement(self) -> StageView | None:
        """Return the batch to measure first; None if none is ready."""
        return min(self._ready["measure"], key=_stage_order, default=None)

    def next_continuation(self) -> StageView | None:
        """Return the build, training or compilation to start first; None if none is ready.

        A job trains one model, so it never runs two trainings at once.
        """
        training = any(stage.kind == "train" for stage in self.running.values())
        ready = [stage for stage in self._ready["continue"] if not (training and stage.kind == "train")]
        return min(ready, key=_stage_order, default=None)

    def open_searches(self, rounds_per_task: int) -> list[StageView]:
        """Return the searches that could start now.

        Args:
            rounds_per_task: How many rounds of a task may be in flight.

        Returns:
            The searches of tasks that have room for another round and that more trials could still improve.
        """
        rounds = self.task_rounds
        return [
            stage
            for stage in self._ready["begin"]
            if rounds.get(stage.id.task, 0) < rounds_per_task and self.is_open(stage.id.task)
        ]

    def batch(self, task: int | None = None, by_estimates: bool = False) -> int:
        """Return how many candidates the next search may propose.

        Args:
            task: The index of the task to search; None if any will do.
            by_estimates: Limit the first batch of a task by what the estimates say is worth a search.
        """
        tried = None if task is None else len(self.view.tasks[task].running_best)
        return batch(self.view, self.trials_in_flight, self._worthwhile() if by_estimates else None, tried)

    def _worthwhile(self) -> int:
        """Return the smallest batch in which search and training, which it does not lengthen, take a small share."""
        fixed = sum(self.seconds(kind, 1) for kind in ("search", "train"))
        per_candidate = sum(self.seconds(kind, 1) for kind in ("build", "measure"))
        return math.ceil(_MIN_BATCH_RATIO * fixed / max(per_candidate, 1e-6))

    def is_open(self, task: int) -> bool:
        """Return whether more trials could still improve a task."""
        return self._gain(task).is_open

    def gain_per_second(self, task: int) -> float:
        """Return the expected gain of one more trial of a task, over the seconds that the policy says a round takes.

        The value is the one from when the task last changed.
        """
        view = self.view.tasks[task]
        last = self._gains_per_second.get(task)
        if last is not None and last[0] is view:
            return last[1]
        gain = self._gain(task).gain
        per_second = gain if math.isinf(gain) else gain / self._round_seconds(self)
        self._gains_per_second[task] = (view, per_second)
        return per_second

    def _gain(self, task: int) -> _TaskGain:
        view = self.view.tasks[task]
        last = self._gains.get(task)
        if last is None or last.task is not view:
            gain = expected_gain(view, self.view.trials_per_round, self.view.fastest)
            last = _TaskGain(view, gain, is_open(self.view, view))
            self._gains[task] = last
        return last

    def seconds(self, kind: Kind, candidates: int, task: int | None = None) -> float:
        """Return how many seconds a stage is expected to take.

        Args:
            candidates: The size of its batch.
            task: The index of its task; None for the mean of the job.
        """
        subjects: tuple[str, ...] = (str(self.view.id),)
        if task is not None:
            subjects = (*subjects, self.view.tasks[task].key)
        return self._estimates.seconds(kind, self.view.device, subjects, candidates)

    def estimate_remaining(self, machine: MachineResources, rounds_per_task: int) -> RemainingWork:
        """Return the remaining work by the estimates as they are now.

        Args:
            machine: What the stages run on.
            rounds_per_task: How many rounds of a task may be in flight.
        """
        view = self.view
        search, build, measure, train = (
            round(1000 * self.seconds(kind, view.trials_per_round)) for kind in ("search", "build", "measure", "train")
        )
        compile, confirm = (round(1000 * self.seconds(kind, 1)) for kind in ("compile", "confirm"))
        measure_cpus = len(machine.cpu_device) if measures_on_cpus(view.device) and machine.drains else 1
        open_tasks = self._count_open()
        left = max(0, view.trials - view.trials_done - self.trials_in_flight)
        new_rounds = -(-left // view.trials_per_round) if open_tasks else 0
        counts = self._count_stages()
        searches = new_rounds + counts["search"]
        builds = new_rounds + counts["search"] + counts["build"]
        measures = builds + counts["measure"]
        trains = measures + counts["train"]
        round_ms = search + build + measure + train
        on_cpus = searches * search + builds * build + trains * train + counts["compile"] * compile
        on_device = measures * measure + (counts["compile"] + counts["confirm"]) * confirm
        if rounds_per_task > 1:  # rounds of a task overlap, but the next search needs the build of the last
            round_ms = max(search + build, -(-round_ms // rounds_per_task))
        begun = measures - new_rounds
        return RemainingWork(
            cpu_ms=on_cpus + on_device * measure_cpus,
            device_ms=on_device,
            ready_ms=counts["measure"] * measure,
            begun_ms=begun * measure,
            chain_ms=(-(-new_rounds // max(1, open_tasks)) + bool(begun)) * round_ms,
        )

    def _count_open(self) -> int:
        """Return how many tasks more trials could still improve."""
        if self._open_count[0] is not self.view.tasks:
            self._open_count = (self.view.tasks, sum(self.is_open(task) for task in range(len(self.view.tasks))))
        return self._open_count[1]

    def _count_stages(self) -> dict[Kind, int]:
        """Return how many rounds in flight are counts each stage."""
        counts = dict.fromkeys(STAGE_ORDER, 0)
        for stage in self._ready["measure"] + self._ready["continue"]:
            counts[stage.kind] += 1
        for running in self.running.values():
            counts[running.kind] += 1
        return counts


def _stage_order(stage: StageView) -> tuple[int, int, int]:
    """Order the stages of a job: the one nearest to the end of its round first, then the oldest round."""
    return STAGE_ORDER[stage.kind], stage.id.round, stage.id.task
