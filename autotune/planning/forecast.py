"""When jobs will end, from their remaining work and the order in which they are served.

This is no simulation. A job ends when its own work is done, and that of the jobs which get the same resources before
it or share them with it, over the number of these resources; and no sooner than its longest chain of stages.

Time lost between stages is not counted: CPUs that drain for a measurement, workers that load, leases of other
processes. It makes jobs end later than the forecast. Tasks that converge before the budget is used make jobs end
sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autotune.planning.board import Board
from autotune.planning.planned_job import PlannedJob
from autotune.planning.policy import AGING_S, STAGE_ORDER, Policy, turn
from autotune.planning.view import JobView, StageId, measures_on_cpus

# Jobs whose turns are this close share the machine under a policy that uses estimates, as under `predictive`.
_SAME_TURN_S = AGING_S / 8


@dataclass(frozen=True)
class _SecondsLeft:
    """What a job still needs, in seconds.

    Attributes:
        turn: Its place in the order of jobs.
        cpu_s: CPU time.
        device_s: Time on its device.
        serial_s: The sum of its stages, one after another.
        chain_s: Its longest chain of stages.
    """

    job: int
    device: str
    turn: tuple[float, int]
    cpu_s: float
    device_s: float
    serial_s: float
    chain_s: float


def forecast(board: Board) -> dict[int, float]:
    """Return in how many seconds each job of the board is expected to end.

    Jobs that need a device which the machine lacks have no end and are left out.
    """
    jobs = [job for job in board.jobs.values() if job.view.device in board.machine.kinds]
    ends: dict[int, float] = {}
    before: dict[str, float] = defaultdict(float)  # seconds of each resource that earlier groups need
    for group in _groups([_seconds_left(job, board) for job in jobs], board.policy):
        ends |= _ends(group, before, board)
        for job in group:
            before["cpu"] += job.cpu_s
            before["serial"] += job.serial_s
            before[f"device {job.device}"] += job.device_s
    return ends


def _groups(jobs: Sequence[_SecondsLeft], policy: Policy) -> list[list[_SecondsLeft]]:
    """Return groups of jobs that share the resources equally, in the order in which the groups are served."""

    def place(job: _SecondsLeft) -> tuple[float, int]:
        if not policy.leases:
            return 0.0, 0
        return (job.turn[0] // _SAME_TURN_S, 0) if policy.uses_estimates else job.turn

    return [list(group) for _, group in groupby(sorted(jobs, key=place), place)]


def _ends(group: list[_SecondsLeft], before: dict[str, float], board: Board) -> dict[int, float]:
    if _one_stage_at_a_time(board.policy):
        serial = _shared([job.serial_s for job in group])
        return {job.job: before["serial"] + serial_s for job, serial_s in zip(group, serial, strict=True)}
    cpu = _shared([job.cpu_s for job in group])
    ends = {
        job.job: max((before["cpu"] + cpu_s) / len(board.machine.cpus), job.chain_s)
        for job, cpu_s in zip(group, cpu, strict=True)
    }
    for kind, names in board.machine.kinds.items():
        users = [job for job in group if job.device == kind]
        for job, device_s in zip(users, _shared([job.device_s for job in users]), strict=True):
            ends[job.job] = max(ends[job.job], (before[f"device {kind}"] + device_s) / len(names))
    return ends


def _one_stage_at_a_time(policy: Policy) -> bool:
    return policy.leases and policy.rounds_per_job == 1


def _shared(needs: Sequence[float]) -> list[float]:
    """Return when each of several needs is met if one resource serves all of them at equal rates."""
    met = [0.0] * len(needs)
    served = 0.0
    spent = 0.0
    order = sorted(range(len(needs)), key=lambda index: needs[index])
    for place, index in enumerate(order):
        spent += (needs[index] - served) * (len(needs) - place)
        served = needs[index]
        met[index] = spent
    return met


def _seconds_left(job: PlannedJob, board: Board) -> _SecondsLeft:
    remaining = job.estimate_remaining(board.machine, board.policy.rounds_per_task)
    done = dict.fromkeys(STAGE_ORDER, 0.0)
    for stage in job.running.values():
        expected = job.seconds(stage.kind, stage.count or _candidates(job.view, stage.id), stage.id.task)
        done[stage.kind] += min(expected, max(0.0, board.now - stage.started_at))
    # A measurement on the CPU takes all CPUs of a machine.
    drains = measures_on_cpus(job.view.device) and board.machine.drains
    more_cpus = len(board.machine.cpu_device) - 1 if drains else 0
    cpu_s = remaining.cpu_ms / 1000
    device_s = remaining.device_ms / 1000
    passed = sum(done.values())
    serial_s = max(0.0, cpu_s - more_cpus * device_s - passed)
    chain_s = max(0.0, remaining.chain_ms / 1000 - max(done.values()))
    return _SecondsLeft(
        job.view.id,
        job.view.device,
        turn(job.view),
        cpu_s=max(0.0, cpu_s - passed - more_cpus * done["measure"]),
        device_s=max(0.0, device_s - done["measure"]),
        serial_s=serial_s,
        chain_s=serial_s if board.policy.rounds_per_job == 1 else chain_s,
    )


def _candidates(view: JobView, id: StageId) -> int:
    """Return the size of a stage's batch."""
    return next((stage.candidates for stage in view.stages if stage.id == id), 0) or view.trials_per_round
