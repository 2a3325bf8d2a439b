"""One job as the planner keeps it: its picture, what runs of it, what could start, and what is left to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autotune.planning.budget import batch
from autotune.planning.estimates import Estimates
from autotune.planning.gain import expected_gain, is_open
from autotune.planning.offers import Offer, Step
from autotune.planning.view import JobView, Kind, Machine, RunningView, StageId, StageView, TaskView
from autotune.reasons import Reason

# Finish what was begun before beginning more: a round in flight holds a task's budget and its news.
ORDER: dict[Kind, int] = {"train": 0, "measure": 1, "build": 2, "search": 3}
# A search may take so much less than what it finds takes to build and measure.
_OVERHEAD = 3.0


@dataclass(frozen=True)
class Forecast:
    """What is left of a job, in milliseconds. `chain_ms`: its end is no nearer, with all resources to itself."""

    cpu_ms: int = 0
    device_ms: int = 0
    supply_ms: int = 0
    begun_ms: int = 0
    chain_ms: int = 0


class Work:
    """One job. `survey` brings everything derived up to date after `view` or `running` has changed."""

    def __init__(self, view: JobView) -> None:
        self.view = view
        self.running: dict[StageId, RunningView] = {}
        self.offers: dict[Step, Offer] = {}
        self.held: dict[str, set[int]] = {}
        self.rounds: dict[int, int] = {}
        self.begun = 0
        self.in_flight = 0
        self.watches: set[str] = set()
        self.forecast = Forecast()
        self.reason: Reason | None = None
        self._ready: dict[Step, list[StageView]] = {"measure": [], "proceed": [], "begin": []}
        self._open: tuple[tuple[TaskView, ...], int] = ((), 0)
        self._worths: dict[int, tuple[TaskView, float]] = {}
        self._gains: dict[int, tuple[TaskView, float, bool]] = {}

    def survey(self, present: bool) -> None:
        """Sort the stages; `present` says whether the machine has the device that the job measures on."""
        self.rounds, self.begun = {}, 0
        self.in_flight = sum(item.count for item in self.running.values() if item.kind == "search")
        self._ready = {"measure": [], "proceed": [], "begin": []}
        for stage in self.view.live_stages:
            if stage.kind == "build" or stage.kind == "measure":
                self.in_flight += stage.candidates
            if stage.id not in self.running:
                self._place(stage, present)
        for id in self.running:
            self.begun += 1
            self.rounds[id.task] = self.rounds.get(id.task, 0) + 1
        self.held = {}
        for task in self.rounds:
            if task < len(self.view.tasks):
                self.held.setdefault(self.view.tasks[task].key, set()).add(task)

    def _place(self, stage: StageView, present: bool) -> None:
        if stage.kind == "search":
            self._ready["begin"].append(stage)
            return
        self.rounds[stage.id.task] = self.rounds.get(stage.id.task, 0) + 1
        # A round that waits for a device we lack must not keep others out.
        self.begun += stage.kind != "measure" or present
        self._ready["measure" if stage.kind == "measure" else "proceed"].append(stage)

    @property
    def gathered(self) -> int:
        """How many batches are ready to be measured."""
        return len(self._ready["measure"])

    def next_measure(self) -> StageView | None:
        return min(self._ready["measure"], key=_age, default=None)

    def next_proceed(self) -> StageView | None:
        """A build or a training; two trainings of one job at once would fit the same model twice."""
        training = any(item.kind == "train" for item in self.running.values())
        ready = [stage for stage in self._ready["proceed"] if not (training and stage.kind == "train")]
        return min(ready, key=_age, default=None)

    def batch(self, estimates: Estimates | None = None) -> int:
        """How many candidates the next search may propose; with `estimates`, no more at first than are worth it."""
        return batch(self.view, self.in_flight, self._worthwhile(estimates) if estimates else None)

    def _worthwhile(self, estimates: Estimates) -> int:
        """A batch of which the stages that do not grow with it are no more than a third."""
        alone = sum(self.seconds(kind, estimates, 1) for kind in ("search", "train"))
        each = sum(self.seconds(kind, estimates, 1) for kind in ("build", "measure"))
        return math.ceil(_OVERHEAD * alone / max(each, 1e-6))

    def searches(self, rounds_per_task: int) -> list[StageView]:
        """Searches of tasks that more trials could still improve and that have room for another round."""
        rounds = self.rounds
        return [
            stage
            for stage in self._ready["begin"]
            if rounds.get(stage.id.task, 0) < rounds_per_task and self.is_open(stage.id.task)
        ]

    def gain(self, task: int) -> float:
        """Microseconds that one more trial of a task is expected to save."""
        return self._known(task)[1]

    def is_open(self, task: int) -> bool:
        return self._known(task)[2]

    def worth(self, task: int, cost: Callable[[], float]) -> float:
        """The gain of a task over what its next round costs, as of its last change."""
        view, known = self.view.tasks[task], self._worths.get(task)
        if known is None or known[0] is not view:
            gain = self.gain(task)
            known = self._worths[task] = (view, gain if math.isinf(gain) else gain / cost())
        return known[1]

    def _count_open(self) -> int:
        if self._open[0] is not self.view.tasks:
            self._open = (self.view.tasks, sum(self.is_open(task) for task in range(len(self.view.tasks))))
        return self._open[1]

    def _known(self, task: int) -> tuple[TaskView, float, bool]:
        view, known = self.view.tasks[task], self._gains.get(task)
        if known is None or known[0] is not view:
            per_round = self.view.trials_per_round
            known = self._gains[task] = (view, expected_gain(view, per_round), is_open(self.view, view))
        return known

    def seconds(self, kind: Kind, estimates: Estimates, count: int, task: int | None = None) -> float:
        """What a stage of this job, or of one task of it, is expected to take."""
        subjects: tuple[str, ...] = (str(self.view.id),)
        if task is not None:
            subjects = (*subjects, self.view.tasks[task].key)
        return estimates.seconds(kind, self.view.device, subjects, count)

    def look_ahead(self, estimates: Estimates, machine: Machine, rounds_per_task: int) -> None:
        """Keep a forecast of what is left."""
        self.forecast = self.foresee(estimates, machine, rounds_per_task)

    def foresee(self, estimates: Estimates, machine: Machine, rounds_per_task: int) -> Forecast:
        """What is left, from the estimates as they are now."""
        view = self.view
        search, build, measure, train = (
            round(1000 * self.seconds(kind, estimates, view.trials_per_round))
            for kind in ("search", "build", "measure", "train")
        )
        wide = len(machine.cpus) if view.device == "cpu" and machine.drains else 1
        open_tasks = self._count_open()
        left = max(0, view.trials - view.trials_done - self.in_flight)
        rounds = -(-left // view.trials_per_round) if open_tasks else 0
        at = self._stages_at()
        searches, builds = rounds + at["search"], rounds + at["search"] + at["build"]
        measures = builds + at["measure"]
        trains = measures + at["train"]
        turn = search + build + measure + train
        if rounds_per_task > 1:
            turn = max(search + build, -(-turn // rounds_per_task))
        begun = measures - rounds
        return Forecast(
            cpu_ms=searches * search + builds * build + trains * train + measures * measure * wide,
            device_ms=measures * measure,
            supply_ms=at["measure"] * measure,
            begun_ms=begun * measure,
            chain_ms=(-(-rounds // max(1, open_tasks)) + bool(begun)) * turn,
        )

    def _stages_at(self) -> dict[Kind, int]:
        """How many rounds are at each stage; a search counts once it runs."""
        at: dict[Kind, int] = {"search": 0, "build": 0, "measure": 0, "train": 0}
        for stage in self._ready["measure"] + self._ready["proceed"]:
            at[stage.kind] += 1
        for item in self.running.values():
            at[item.kind] += 1
        return at


def _age(stage: StageView) -> tuple[int, int, int]:
    """Of several stages of a job, the one nearest to the end of its round, then the one begun first."""
    return ORDER[stage.kind], stage.id.round, stage.id.task
