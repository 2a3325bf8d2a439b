"""The policy that uses how long stages take: it keeps scarce devices busy and spends CPUs where they pay most.

A free CPU goes to the first that exists of:

1. a job that starves, or that would otherwise miss its deadline;
2. a job whose longest chain of stages takes as long as all the work that is left, because that chain then decides when
   everything ends;
3. for a scarce device that will soon lack batches, the job that gives it most measuring for the least CPU time. A
   device is scarce if its remaining work takes about as long as that of the CPUs;
4. a round that has begun, or else the job whose next round is expected to gain most per second.
"""

from __future__ import annotations

import math

from autotune.planning.policy import AGING_S, STAGE_ORDER, JobFacts, PlannerView, Policy, must_start_by, turn
from autotune.planning.queues import DeviceQueues, QueueName, Rank, ReadyStage
from autotune.planning.view import MachineResources, StageView

# The orders: expected gain per second; longest chain; CPU time for device time; time by which the job must be served.
_GAIN, _CHAIN, _FEED, _MUST = range(4)
# Jobs whose turns are this close count as equal, and their expected gain decides.
_SAME_TURN_S = AGING_S / 8
# A chain is critical if this many times its length is at least the length of all the work that is left.
_CHAIN_CAUTION = 2.0
# A device is scarce if the work left for it takes at least this share of the time of the work left for the CPUs.
_SCARCE = 0.8
# Rounds begin while the measuring time of the rounds begun is at most this many times the lead time, per device.
_BEGUN_RATIO = 3.0
_ROUNDS_PER_CPU = 3
# The size of the batch by which the lead time is estimated.
_LEAD_BATCH = 16


class Predictive(Policy):
    """Starts stages in the order that the module describes."""

    name = "predictive"
    orders = 4
    rounds_per_task = 2
    uses_estimates = True

    def ranks(self, job: JobFacts, stage: StageView, queue: QueueName, machine: MachineResources) -> tuple[Rank, ...]:
        remaining = job.remaining
        view = job.view
        stage_order = STAGE_ORDER[stage.kind]
        id = view.id
        turn_group = turn(view)[0] // _SAME_TURN_S
        gain = job.gain_per_second(stage.id.task) if queue == "begin" else 0.0
        need_s = max(remaining.chain_ms, remaining.cpu_ms // len(machine.cpus)) / 1000
        cpu_per_device = remaining.cpu_ms / max(1, remaining.device_ms)
        return (
            (queue == "begin", turn_group, -gain, stage_order, id),
            (-remaining.chain_ms, stage_order, id),
            (stage_order if queue == "begin" else 0, cpu_per_device, stage_order, id),
            (must_start_by(view, need_s), stage_order, id),
        )

    def round_seconds(self, job: JobFacts) -> float:
        # The job's mean, not the task's own time: a budget is in trials, so within a job the gain of a trial counts,
        # and a task that compiles slowly must not starve.
        candidates = job.view.trials_per_round
        build = job.seconds("build", candidates)
        return max(1e-3, build + job.seconds("measure", candidates))

    def pick_measurement(self, kind: str, planner: PlannerView) -> ReadyStage | None:
        return (
            _first_batch(planner, kind, _MUST, planner.now)
            or _first_batch(planner, kind, _CHAIN, _critical_chain(planner))
            or _first_batch(planner, kind, _GAIN)
        )

    def pick_cpu_stage(self, planner: PlannerView) -> ReadyStage | None:
        kinds = _kinds_to_begin(planner)
        return (
            _first_cpu_stage(planner, _MUST, kinds, planner.now)
            or _first_cpu_stage(planner, _CHAIN, kinds, _critical_chain(planner))
            or _first_cpu_stage(planner, _FEED, [kind for kind in kinds if _is_starved(planner, planner.queues[kind])])
            or _first_cpu_stage(planner, _GAIN, kinds)
        )

    def pick_while_draining(self, planner: PlannerView) -> ReadyStage | None:
        until = planner.busy_until()
        for ready in (planner.first("continue"), planner.first("begin", _kinds_to_begin(planner))):
            if ready is not None and planner.ends_at(ready) <= until:
                return ready
        return None


def _first_cpu_stage(
    planner: PlannerView, order: int, begin_for: list[str], limit: float = math.inf
) -> ReadyStage | None:
    """Return the first search, build or training in an order; None if its rank begins above `limit`.

    Args:
        planner: What the policy sees.
        begin_for: The kinds of devices for which rounds may begin. The order `_FEED` looks at these kinds alone.
        limit: The highest first value of the rank.
    """
    continue_for = begin_for if order == _FEED else None
    both = (planner.first("continue", continue_for, order), planner.first("begin", begin_for, order))
    best = min((ready for ready in both if ready), key=lambda ready: ready.ranks[order], default=None)
    return best if best is not None and best.ranks[order][0] <= limit else None


def _first_batch(planner: PlannerView, kind: str, order: int, limit: float = math.inf) -> ReadyStage | None:
    """Return the first batch for a kind of device in an order; None if its rank begins above `limit`."""
    ready = planner.first("measure", (kind,), order)
    return ready if ready is not None and ready.ranks[order][0] <= limit else None


def _cpu_left_ms(planner: PlannerView) -> float:
    """Return how long the CPUs take for the work that is left, if always busy."""
    return sum(totals.cpu_ms for totals in planner.queues.values()) / len(planner.machine.shared_cpus)


def _device_left_ms(totals: DeviceQueues) -> float:
    """Return how long the devices of a kind take for the work that is left, if always busy."""
    return totals.device_ms / max(1, totals.devices)


def _critical_chain(planner: PlannerView) -> float:
    """Return the highest rank in the order `_CHAIN` of a job whose chain is critical."""
    work_ms = max(_cpu_left_ms(planner), *(_device_left_ms(totals) for totals in planner.queues.values()), 0.0)
    return -work_ms / _CHAIN_CAUTION


def _lead_ms(planner: PlannerView, totals: DeviceQueues) -> float:
    """Return how long a round that begins now takes until it can be measured."""
    search = planner.seconds("search", totals.kind, _LEAD_BATCH)
    return 1000 * (search + planner.seconds("build", totals.kind, _LEAD_BATCH))


def _is_starved(planner: PlannerView, totals: DeviceQueues) -> bool:
    """Return whether a scarce device would lack batches before a round that begins now reaches it."""
    short = totals.ready_ms < totals.devices * _lead_ms(planner, totals)
    return short and _device_left_ms(totals) >= _SCARCE * _cpu_left_ms(planner)


def _kinds_to_begin(planner: PlannerView) -> list[str]:
    """Return the kinds of devices for which another round may begin."""
    return [kind for kind, totals in planner.queues.items() if _may_begin(planner, totals)]


def _may_begin(planner: PlannerView, totals: DeviceQueues) -> bool:
    """Return whether another round for a kind of device may begin.

    Enough rounds begin to keep the devices busy, and no more, because each search would know less.
    """
    if planner.rounds_begun >= _ROUNDS_PER_CPU * len(planner.machine.shared_cpus):
        return False
    if not totals.devices:
        return True  # no device to keep busy, so all batches are prepared
    return totals.begun_ms <= _BEGUN_RATIO * totals.devices * _lead_ms(planner, totals) or not planner.stages_running
