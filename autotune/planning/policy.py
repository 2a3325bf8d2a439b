"""What a policy is: the rule by which the next stage is picked; and the order of jobs by urgency.

A policy is one file in `policies/`: a class derived from `Policy`. It has a line in `policies.POLICIES`, and its name
is listed in `settings.py`. It gives each ready stage a rank in one or more orders, and picks among the stages that are
first in one of them.

What a policy is given:

- `ranks` and `round_seconds` get one job as `JobFacts`.
- The methods that pick get a `PlannerView`: the first stage of each queue, the sums of remaining work, the machine.
- It gets no file, no process and no clock; `PlannerView.now` is the time of the plan.

What a policy owes:

- `ranks` depends on the job and the machine alone, not on other jobs: ranks are worked out again only when the job
  has changed. It returns `orders` ranks. Every rank contains the job's id, so that no two ranks are equal.
- The methods that pick return a stage which `PlannerView.first` returned, or None to start nothing.
- If nothing runs and a stage is ready, one of them must pick a stage. Otherwise the jobs never go on.
- The same input gives the same answer.

Priorities age, and a job must be served by a time: `turn` and `must_start_by` say so for every policy.

What the planner guarantees, whatever a policy answers (the first point only if `leases` is true):

- No CPU and no device is given to two stages, and a measurement on the `cpu` has its CPUs to itself.
- Two tasks never work on the same tuning log at once.
- No job begins more trials than its budget has left.
- At most `rounds_per_task` rounds of a task and `rounds_per_job` rounds of a job are in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from autotune.planning.estimates import RemainingWork
from autotune.planning.queues import DeviceQueues, QueueName, Rank, ReadyStage
from autotune.planning.view import JobView, Kind, MachineResources, StageView

# The order of a job's own stages: a round in flight holds part of the budget and results that the next search could
# use, so it is finished before another begins. A confirmation may end the job.
STAGE_ORDER: dict[Kind, int] = {
    "confirm": 0,
    "compile": 1,
    "train": 2,
    "measure": 3,
    "build": 4,
    "search": 5,
}
# One step of priority is worth this many seconds of waiting. All jobs age alike, so the order of two jobs never
# changes: a job of priority p counts as submitted p times this earlier.
AGING_S = 4 * 3600.0
# A job that has a ready stage and had none started for this many seconds goes before all others.
STARVING_S = 900.0
# The remaining time of a job with a deadline is multiplied by this: estimates err, and the machine is shared.
_DEADLINE_CAUTION = 1.5


class JobFacts(Protocol):
    """What a policy is told about one job."""

    @property
    def view(self) -> JobView:
        """The job, its tasks and its stages."""
        ...

    @property
    def remaining(self) -> RemainingWork:
        """Its remaining work; all zero unless the policy sets `uses_estimates`."""
        ...

    def seconds(self, kind: Kind, candidates: int) -> float:
        """Return how many seconds a stage of the job takes on average with so many candidates."""
        ...

    def gain_per_second(self, task: int) -> float:
        """Return the microseconds of latency that a trial of a task is expected to save, over `round_seconds`."""
        ...


class PlannerView(Protocol):
    """What a policy sees when it picks a stage. It reads, and changes nothing."""

    @property
    def now(self) -> float:
        """The time of the plan in epoch seconds."""
        ...

    @property
    def machine(self) -> MachineResources:
        """All CPUs and devices, free or not."""
        ...

    @property
    def stages_running(self) -> int:
        """How many stages run, including those started by this plan."""
        ...

    @property
    def rounds_begun(self) -> int:
        """How many rounds are in flight, without those that wait for a device which the machine lacks."""
        ...

    @property
    def queues(self) -> Mapping[str, DeviceQueues]:
        """What waits, by kind of device, for the kinds that jobs measure on. Sums are zero without `uses_estimates`."""
        ...

    def first(self, queue: QueueName, kinds: Iterable[str] | None = None, order: int = 0) -> ReadyStage | None:
        """Return the ready stage of the lowest rank.

        Args:
            queue: The queue to look at.
            kinds: Only stages of jobs that measure on these kinds of devices; by default of all jobs.
            order: The index of the rank to go by.
        """
        ...

    def seconds(self, kind: Kind, device: str, candidates: int) -> float:
        """Return how many seconds a stage takes on average over all jobs that measure on a kind of device."""
        ...

    def ends_at(self, ready: ReadyStage) -> float:
        """Return the epoch second at which a stage is expected to end if it starts now."""
        ...

    def busy_until(self) -> float:
        """Return the epoch second at which the last running stage is expected to end; `now` if none runs."""
        ...


class Policy:
    """The rule that other policies refine: jobs in turn, rounds in flight before new rounds.

    Attributes:
        name: The name in the settings and in `POLICIES`.
        leases: Whether stages lease their CPUs and devices. If not, all stages share everything.
        orders: How many ranks `ranks` returns.
        rounds_per_task: How many rounds of a task may be in flight.
        rounds_per_job: How many rounds of a job may be in flight; None for any number.
        uses_estimates: Whether decisions depend on how long stages take. If so, the remaining work of every job is
            kept up to date, which costs time.
        gather_per_cpu: How many batches to gather per CPU before all other stages are drained for measurements on
            the `cpu`, which need all CPUs.
    """

    name = ""
    leases = True
    orders = 1
    rounds_per_task = 1
    rounds_per_job: int | None = None
    uses_estimates = False
    gather_per_cpu = 2

    def ranks(self, job: JobFacts, stage: StageView, queue: QueueName, machine: MachineResources) -> tuple[Rank, ...]:
        """Return the rank of a ready stage in each order. The lowest rank goes first.

        Args:
            job: The job of the stage.
            queue: The queue that the stage enters.
            machine: All CPUs and devices.
        """
        return ((*turn(job.view), STAGE_ORDER[stage.kind]),)

    def round_seconds(self, job: JobFacts) -> float:
        """Return the seconds that a round of a job costs, by which expected gains are divided.

        The default is the same for all jobs, so that gains alone decide.
        """
        return 1.0

    def pick_measurement(self, kind: str, planner: PlannerView) -> ReadyStage | None:
        """Pick the batch to measure next, on a free device of a kind."""
        return planner.first("measure", (kind,))

    def pick_cpu_stage(self, planner: PlannerView) -> ReadyStage | None:
        """Pick the search, build or training that gets the next free CPU."""
        return planner.first("continue") or planner.first("begin")

    def pick_while_draining(self, planner: PlannerView) -> ReadyStage | None:
        """Pick a stage that may still start while the CPUs are drained for a measurement.

        It should end no later than the stages that run. The default picks none.
        """
        return None


def turn(job: JobView) -> tuple[float, int]:
    """Return the sort key that puts jobs in the order of their turn: by priority and age, then by id."""
    return job.submitted_at - job.priority * AGING_S, job.id


def must_start_by(job: JobView, need_s: float) -> float:
    """Return the time from which a job goes before all others.

    Args:
        need_s: Seconds that the job still needs.

    Returns:
        The epoch second at which the job starves, or the one at which it would start to miss its deadline if that is
        earlier.
    """
    starves_at = job.served_at + STARVING_S
    if job.deadline is None:
        return starves_at
    return min(starves_at, job.deadline - need_s * _DEADLINE_CAUTION)


def misses(deadline: float | None, need_s: float, now: float) -> bool:
    """Return whether a job that needs `need_s` more seconds will miss its deadline; False without a deadline."""
    return deadline is not None and now + need_s > deadline
