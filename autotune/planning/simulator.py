"""Discrete events over a described machine, its jobs and their stages, driven by the planner that drives the daemon."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from autotune.planning.budget import ended
from autotune.planning.estimates import Estimates
from autotune.planning.planner import Planner
from autotune.planning.policy import Policy
from autotune.planning.scenario import Scenario, SimulatedJob
from autotune.planning.sharing import Clock
from autotune.planning.usage import Bound, Usage
from autotune.planning.view import JobView, Kind, RunningView, StageId, StageView, Start, TaskView

# A task gains most from its first trials: its time falls towards a third, half of the way after so many trials.
_FIRST_US = 1000.0
_FLOOR = 0.3
_HALF_AFTER = 32


@dataclass(frozen=True)
class Span:
    """A stage that ran, from one moment to another."""

    id: StageId
    kind: Kind
    cpus: tuple[int, ...]
    device: str
    start: float
    end: float
    leased: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario under a policy. Seconds; busy and idle are summed over all resources of a kind."""

    policy: str
    makespan: float
    completions: dict[int, float]
    busy: dict[str, float]
    idle: dict[str, dict[str, float]]
    counts: dict[str, int]
    bound: float
    stages: int
    spans: tuple[Span, ...] = ()

    def utilisation(self, resource: str) -> float:
        """The share of the makespan for which the resources of a kind were busy."""
        whole = self.counts[resource] * self.makespan
        return self.busy.get(resource, 0.0) / whole if whole else 0.0


class _Job:
    """A simulated job: what its files and logs would say."""

    def __init__(self, spec: SimulatedJob) -> None:
        self.spec = spec
        self.served_at = spec.submitted_at
        self.tasks = tuple(TaskView(f"{spec.device}/{spec.id}/{n}", 1 + n % 3) for n in range(spec.tasks))
        ids = (StageId(spec.id, task, 0) for task in range(spec.tasks))
        self.stages: dict[StageId, StageView] = {id: StageView(id, "search") for id in ids}

    def view(self) -> JobView:
        spec = self.spec
        return JobView(
            spec.id,
            spec.device,
            self.tasks,
            tuple(self.stages.values()),
            spec.trials,
            spec.trials_per_round,
            0,
            0.0,
            spec.priority,
            spec.submitted_at,
            self.served_at,
            spec.deadline,
        )

    def advance(self, item: RunningView) -> None:
        """What a stage that ended publishes: as the stages of the real worker do."""
        id = item.id
        if item.kind == "search":
            self.stages[id] = StageView(id, "build", item.count)
        elif item.kind == "build":
            self._publish_search(id)
            self.stages[id] = StageView(id, "measure", self.stages[id].candidates)
        elif item.kind == "measure":
            self._log(id.task, self.stages[id].candidates)
            self.stages[id] = StageView(id, "train")
        else:
            self._publish_search(id)
            del self.stages[id]

    def _publish_search(self, id: StageId) -> None:
        following = StageId(id.job, id.task, id.round + 1)
        if not any(other.task == id.task and other.round > id.round for other in self.stages):
            self.stages[following] = StageView(following, "search")

    def _log(self, task: int, count: int) -> None:
        view = self.tasks[task]
        known = len(view.running_best)
        new = tuple(_FIRST_US * _share(known + n + 1) for n in range(count))
        following = TaskView(view.key, view.weight, view.trials + count, view.running_best + new)
        self.tasks = (*self.tasks[:task], following, *self.tasks[task + 1 :])


def _share(trials: int) -> float:
    return _FLOOR + (1 - _FLOOR) * _HALF_AFTER / (_HALF_AFTER + trials)


class Simulation:
    """One run of a scenario under one policy. `watch` is told of every start, with what runs then."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        record: bool = False,
        watch: Callable[[float, Start, dict[StageId, RunningView]], None] | None = None,
    ) -> None:
        self._scenario, self._policy, self._record, self._watch = scenario, policy, record, watch
        self._planner = Planner(scenario.machine, policy, Estimates())
        self._board = self._planner.board
        self._clock = Clock()
        self._clock.group("leased", math.inf)
        self._arrivals = sorted(scenario.jobs, key=lambda job: (job.submitted_at, job.id), reverse=True)
        self._jobs: dict[int, _Job] = {}
        self._active: dict[str, int] = defaultdict(int)
        self._usage = Usage(scenario.machine)
        self._bound = Bound(scenario.machine)
        self._completions: dict[int, float] = {}
        self._spans: list[Span] = []
        self._stages = 0

    def run(self) -> Outcome:
        """Play until nothing runs and nothing comes any more."""
        clock = self._clock
        while True:
            self._admit()
            self._start()
            arrival = self._arrivals[-1].submitted_at if self._arrivals else math.inf
            following = min(clock.next_end(), arrival)
            if following == math.inf:
                break
            self._usage.spend(following - clock.now, self._board, self._active)
            if arrival < clock.next_end():
                clock.now = arrival
                continue
            self._end(clock.pop())
            while clock.next_end() <= clock.now:
                self._end(clock.pop())
        return self._outcome()

    def _outcome(self) -> Outcome:
        usage = self._usage
        return Outcome(
            self._policy.name,
            self._clock.now,
            self._completions,
            dict(usage.busy),
            {name: dict(causes) for name, causes in usage.idle.items()},
            usage.counts(),
            self._bound.seconds(self._scenario.jobs),
            self._stages,
            tuple(self._spans),
        )

    def _admit(self) -> None:
        while self._arrivals and self._arrivals[-1].submitted_at <= self._clock.now:
            spec = self._arrivals.pop()
            job = self._jobs[spec.id] = _Job(spec)
            self._active[spec.device] += 1
            self._board.put(job.view())

    def _start(self) -> None:
        for start in self._planner.starts(self._clock.now):
            id = start.stage.id
            job, item = self._jobs[id.job], self._board.running[id]
            job.served_at = self._clock.now
            seconds = self._seconds(job.spec, start)
            self._stages += 1
            self._usage.change(item, job.spec.device, 1)
            self._bound.add(id, item.kind, job.spec.device, seconds)
            self._run(start, job.spec.device, seconds)
            if self._watch is not None:
                self._watch(self._clock.now, start, self._board.running)

    def _seconds(self, spec: SimulatedJob, start: Start) -> float:
        stage = start.stage
        count = start.count or stage.candidates
        return self._scenario.seconds(spec, stage.id.task, stage.id.round, stage.kind, count)

    def _run(self, start: Start, device: str, seconds: float) -> None:
        """Without leases, CPUs are shared by all that use them, and a device by all that measure on it."""
        machine, name, demand = self._scenario.machine, "leased", 1.0
        if not start.lease and start.stage.kind == "measure" and device != "cpu":
            name = start.device
            self._clock.group(name, 1.0)
        elif not start.lease:
            name = "CPUs"
            demand = float(len(start.cpus)) if start.stage.kind == "measure" else 1.0
            self._clock.group(name, float(len(machine.cpus)))
        self._clock.start(name, start.stage.id, seconds, demand)

    def _end(self, id: StageId) -> None:
        board, job = self._board, self._jobs[id.job]
        item = board.running[id]
        now, device = self._clock.now, job.spec.device
        subjects = (str(id.job), job.tasks[id.task].key)
        board.estimates.add(item.kind, device, subjects, job.stages[id].candidates, now - item.started_at)
        if self._record:
            self._spans.append(Span(id, item.kind, item.cpus, item.device, item.started_at, now, self._policy.leases))
        self._usage.change(item, device, -1)
        job.advance(item)
        board.end(id)
        view = job.view()
        if not board.works[id.job].running and ended(view, ()) is not None:
            board.remove(id.job)
            self._completions[id.job] = now
            self._active[device] -= 1
        else:
            board.put(view)


def simulate(scenario: Scenario, policy: Policy, record: bool = False) -> Outcome:
    """Play a scenario under a policy; `record` keeps every stage, for a chart."""
    return Simulation(scenario, policy, record).run()
