"""A discrete-event simulation of a scenario, with the state and the allocator that the planner uses.

Stages that share CPUs or devices slow each other down.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from autotune.planning.allocator import Allocator
from autotune.planning.budget import ended
from autotune.planning.estimates import Estimates
from autotune.planning.planner_state import PlannerState
from autotune.planning.policy import Policy
from autotune.planning.scenario import Scenario, SimulatedJob
from autotune.planning.usage import LowerBound, ResourceUsage
from autotune.planning.view import JobView, Kind, RunningView, StageId, StageView, Start, TaskView

# The best time of a task starts at this many microseconds and falls towards the share `_FLOOR` of it. It is half way
# after `_HALF_AFTER` trials.
_FIRST_US = 1000.0
_FLOOR = 0.3
_HALF_AFTER = 32


@dataclass(frozen=True)
class Span:
    """A stage that ran. `start` and `end` are in seconds of simulated time."""

    id: StageId
    kind: Kind
    cpus: tuple[int, ...]
    device: str
    start: float
    end: float
    leased: bool = True


@dataclass(frozen=True)
class SimulationResult:
    """The result of a scenario under a policy. All times are in seconds.

    Attributes:
        policy: The name of the policy.
        makespan: When the last stage ended.
        completions: When each job ended, by id.
        busy: How long resources were used, by kind of resource, summed over the resources of the kind.
        idle: How long they were not, by kind of resource and cause, likewise.
        counts: How many resources of each kind there are.
        bound: A lower bound of the makespan.
        stages: How many stages ran.
        spans: The stages that ran, if they were to be recorded.
    """

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
        """Return the share of the makespan for which the resources of a kind were used."""
        whole = self.counts[resource] * self.makespan
        return self.busy.get(resource, 0.0) / whole if whole else 0.0


class _JobProgress:
    """A simulated job: its tasks and the stages that its rounds are at."""

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

    def advance(self, ended: RunningView) -> None:
        """Take the round of a stage that ended to its next stage, as the stages of a worker do."""
        id = ended.id
        if ended.kind == "search":
            self.stages[id] = StageView(id, "build", ended.count)
        elif ended.kind == "build":
            self._add_next_search(id)
            self.stages[id] = StageView(id, "measure", self.stages[id].candidates)
        elif ended.kind == "measure":
            self._add_trials(id.task, self.stages[id].candidates)
            self.stages[id] = StageView(id, "train")
        else:
            self._add_next_search(id)
            del self.stages[id]

    def _add_next_search(self, id: StageId) -> None:
        following = StageId(id.job, id.task, id.round + 1)
        if not any(other.task == id.task and other.round > id.round for other in self.stages):
            self.stages[following] = StageView(following, "search")

    def _add_trials(self, task: int, count: int) -> None:
        view = self.tasks[task]
        trials_before = len(view.running_best)
        new = tuple(_FIRST_US * _share(trials_before + n + 1) for n in range(count))
        following = TaskView(view.key, view.weight, view.trials + count, view.running_best + new)
        self.tasks = (*self.tasks[:task], following, *self.tasks[task + 1 :])


def _share(trials: int) -> float:
    """Return the best time after so many trials, as a share of the first."""
    return _FLOOR + (1 - _FLOOR) * _HALF_AFTER / (_HALF_AFTER + trials)


class Simulation:
    """One run of a scenario under one policy."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        record: bool = False,
        watch: Callable[[float, Start, dict[StageId, RunningView]], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            record: Whether the result contains all stages.
            watch: Called at each start of a stage with the simulated time, the start, and all running stages.
        """
        self._scenario = scenario
        self._policy = policy
        self._record = record
        self._watch = watch
        self._state = PlannerState(scenario.machine, policy, Estimates())
        self._allocator = Allocator(self._state)
        self._clock = SimulatedClock()
        self._clock.add_capacity("leased", math.inf)
        self._arrivals = sorted(scenario.jobs, key=lambda job: (job.submitted_at, job.id), reverse=True)
        self._jobs: dict[int, _JobProgress] = {}
        self._active: dict[str, int] = defaultdict(int)
        self._usage = ResourceUsage(scenario.machine)
        self._bound = LowerBound(scenario.machine)
        self._completions: dict[int, float] = {}
        self._spans: list[Span] = []
        self._stages = 0

    def run(self) -> SimulationResult:
        """Play until nothing runs and no job is to be submitted."""
        clock = self._clock
        while True:
            self._admit()
            self._start()
            arrival = self._arrivals[-1].submitted_at if self._arrivals else math.inf
            following = min(clock.next_end(), arrival)
            if following == math.inf:
                break
            self._usage.spend(following - clock.now, self._state, self._active)
            if arrival < clock.next_end():
                clock.now = arrival
                continue
            self._end(clock.pop())
            while clock.next_end() <= clock.now:
                self._end(clock.pop())
        return self._result()

    def _result(self) -> SimulationResult:
        usage = self._usage
        return SimulationResult(
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
            job = self._jobs[spec.id] = _JobProgress(spec)
            self._active[spec.device] += 1
            self._state.put_job(job.view())

    def _start(self) -> None:
        for start in self._allocator.start_stages(self._clock.now):
            id = start.stage.id
            job = self._jobs[id.job]
            running = self._state.running[id]
            job.served_at = self._clock.now
            seconds = self._seconds(job.spec, start)
            self._stages += 1
            self._usage.change(running, job.spec.device, 1)
            self._bound.add(id, running.kind, job.spec.device, seconds)
            self._run(start, job.spec.device, seconds)
            if self._watch is not None:
                self._watch(self._clock.now, start, self._state.running)

    def _seconds(self, spec: SimulatedJob, start: Start) -> float:
        stage = start.stage
        count = start.count or stage.candidates
        return self._scenario.seconds(spec, stage.id.task, stage.id.round, stage.kind, count)

    def _run(self, start: Start, device: str, seconds: float) -> None:
        """Start a stage on the clock.

        Without leases, all stages share the CPUs, and all measurements on a device other than the CPU share it.
        """
        machine = self._scenario.machine
        name = "leased"
        demand = 1.0
        if not start.lease and start.stage.kind == "measure" and device != "cpu":
            name = start.device
            self._clock.add_capacity(name, 1.0)
        elif not start.lease:
            name = "CPUs"
            demand = float(len(start.cpus)) if start.stage.kind == "measure" else 1.0
            self._clock.add_capacity(name, float(len(machine.cpus)))
        self._clock.start(name, start.stage.id, seconds, demand)

    def _end(self, id: StageId) -> None:
        state = self._state
        job = self._jobs[id.job]
        stage = state.running[id]
        now = self._clock.now
        device = job.spec.device
        subjects = (str(id.job), job.tasks[id.task].key)
        state.estimates.add(stage.kind, device, subjects, job.stages[id].candidates, now - stage.started_at)
        if self._record:
            leased = self._policy.leases
            self._spans.append(Span(id, stage.kind, stage.cpus, stage.device, stage.started_at, now, leased))
        self._usage.change(stage, device, -1)
        job.advance(stage)
        state.stage_ended(id)
        view = job.view()
        if not state.jobs[id.job].running and ended(view, ()) is not None:
            state.remove_job(id.job)
            self._completions[id.job] = now
            self._active[device] -= 1
        else:
            state.put_job(view)


def simulate(scenario: Scenario, policy: Policy, record: bool = False) -> SimulationResult:
    """Play a scenario under a policy.

    Args:
        record: Whether the result contains all stages, as a chart needs them.
    """
    return Simulation(scenario, policy, record).run()


class SharedCapacity:
    """Stages that share a capacity. If they demand more than there is, all of them slow down alike.

    Progress is counted in seconds of a stage at full speed, and is the same for all stages from any moment on. So the
    stages end in the order of the progress at which they do, whatever happens to the speed.
    """

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.demand = 0.0
        self.version = 0
        self._progress = 0.0
        self._updated_at = 0.0
        self._ends: list[tuple[float, int, StageId, float]] = []

    @property
    def rate(self) -> float:
        """The speed of the stages, 1 at most."""
        return min(1.0, self.capacity / self.demand) if self.demand else 1.0

    def add(self, now: float, number: int, id: StageId, seconds: float, demand: float) -> None:
        """Start a stage.

        Args:
            now: The simulated time.
            number: A number that grows with every call. It orders stages that end at once.
            seconds: How long it takes at full speed.
            demand: How much of the capacity it uses at full speed.
        """
        self._advance(now)
        heapq.heappush(self._ends, (self._progress + seconds, number, id, demand))
        self.demand += demand
        self.version += 1

    def pop(self, now: float) -> StageId:
        """Remove the stage that ends now."""
        self._advance(now)
        _, _, id, demand = heapq.heappop(self._ends)
        self.demand = self.demand - demand if self._ends else 0.0
        self.version += 1
        return id

    def next_end(self) -> float:
        """Return when the next stage ends if none starts before; infinity if none runs."""
        if not self._ends:
            return math.inf
        return self._updated_at + max(0.0, self._ends[0][0] - self._progress) / self.rate

    def _advance(self, now: float) -> None:
        self._progress += (now - self._updated_at) * self.rate
        self._updated_at = now


class SimulatedClock:
    """The simulated time in seconds, and the running stages by the capacity that they share."""

    def __init__(self) -> None:
        self.now = 0.0
        self._capacities: dict[str, SharedCapacity] = {}
        # Next ends by capacity and its version; those of older versions are skipped.
        self._next: list[tuple[float, int, str, int]] = []
        self._number = 0

    def add_capacity(self, name: str, capacity: float) -> None:
        """Add a capacity, unless there is one of this name."""
        self._capacities.setdefault(name, SharedCapacity(capacity))

    def start(self, name: str, id: StageId, seconds: float, demand: float = 1.0) -> None:
        """Start a stage that takes `seconds` at full speed and uses `demand` of a capacity."""
        self._number += 1
        self._capacities[name].add(self.now, self._number, id, seconds, demand)
        self._push_next_end(name)

    def next_end(self) -> float:
        """Return when the next stage ends; infinity if none runs."""
        return self._next[0][0] if self._drop_outdated() else math.inf

    def pop(self) -> StageId:
        """Go to the end of the next stage and remove the stage."""
        self._drop_outdated()
        end, _, name, _ = heapq.heappop(self._next)
        self.now = max(self.now, end)
        id = self._capacities[name].pop(self.now)
        self._push_next_end(name)
        return id

    def _push_next_end(self, name: str) -> None:
        capacity = self._capacities[name]
        end = capacity.next_end()
        if end < math.inf:
            self._number += 1
            heapq.heappush(self._next, (end, self._number, name, capacity.version))

    def _drop_outdated(self) -> bool:
        """Drop outdated ends, and return whether any end is left."""
        while self._next and self._capacities[self._next[0][2]].version != self._next[0][3]:
            heapq.heappop(self._next)
        return bool(self._next)
