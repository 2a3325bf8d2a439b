"""When jobs will end: from the estimates of their stages, and whose turn it is.

Not a simulation: what is left of a job, and of those that get the same resources before it or at the same time, over
how many of these resources there are; and no sooner than the job's own longest chain. So it knows nothing of time
lost between stages (CPUs that drain for a measurement, a worker that loads, leases of others), which makes jobs end
later than it says, nor of tasks that stop to improve before the budget is used, which makes them end sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autotune.planning.board import Board
from autotune.planning.policy import Policy
from autotune.planning.urgency import AGING_S, turn
from autotune.planning.view import JobView, StageId
from autotune.planning.work import ORDER, Work

# Jobs whose turns are this close share the machine under a policy that goes by what they gain: as `predictive` does.
_SAME_TURN_S = AGING_S / 8


@dataclass(frozen=True)
class _Left:
    """What is left of a job, in seconds: of one CPU, of a device, stage after stage, and with the machine to itself."""

    job: int
    device: str
    turn: tuple[float, int]
    cpu_s: float
    device_s: float
    serial_s: float
    chain_s: float


def ends_in(board: Board) -> dict[int, float]:
    """Seconds until each job of the board is expected to end.

    A job that needs a device which the machine lacks has no end, and is left out.
    """
    works = [work for work in board.works.values() if work.view.device in board.machine.kinds]
    found: dict[int, float] = {}
    ahead: dict[str, float] = defaultdict(float)
    for group in _groups([_left(work, board) for work in works], board.policy):
        found |= _ends(group, ahead, board)
        for job in group:
            ahead["cpu"] += job.cpu_s
            ahead["serial"] += job.serial_s
            ahead[f"device {job.device}"] += job.device_s
    return found


def _groups(jobs: Sequence[_Left], policy: Policy) -> list[list[_Left]]:
    """Jobs that share as equals, in the order in which the groups get what there is."""

    def place(job: _Left) -> tuple[float, int]:
        if not policy.leases:
            return 0.0, 0
        return (job.turn[0] // _SAME_TURN_S, 0) if policy.forecasts else job.turn

    return [list(group) for _, group in groupby(sorted(jobs, key=place), place)]


def _ends(group: list[_Left], ahead: dict[str, float], board: Board) -> dict[int, float]:
    if _one_at_a_time(board.policy):
        needs = _shared([job.serial_s for job in group])
        return {job.job: ahead["serial"] + serial_s for job, serial_s in zip(group, needs, strict=True)}
    cpu = _shared([job.cpu_s for job in group])
    found = {
        job.job: max((ahead["cpu"] + cpu_s) / len(board.machine.cpus), job.chain_s)
        for job, cpu_s in zip(group, cpu, strict=True)
    }
    for kind, names in board.machine.kinds.items():
        users = [job for job in group if job.device == kind]
        for job, device_s in zip(users, _shared([job.device_s for job in users]), strict=True):
            found[job.job] = max(found[job.job], (ahead[f"device {kind}"] + device_s) / len(names))
    return found


def _one_at_a_time(policy: Policy) -> bool:
    """Whether one stage runs at a time, of whichever job."""
    return policy.leases and policy.rounds_per_job == 1


def _shared(needs: Sequence[float]) -> list[float]:
    """When each of several needs is met, if all are served alike: the sum of what each got until then."""
    met, served, spent = [0.0] * len(needs), 0.0, 0.0
    order = sorted(range(len(needs)), key=lambda index: needs[index])
    for place, index in enumerate(order):
        spent += (needs[index] - served) * (len(needs) - place)
        served = needs[index]
        met[index] = spent
    return met


def _left(work: Work, board: Board) -> _Left:
    found = work.foresee(board.estimates, board.machine, board.policy.rounds_per_task)
    done = {kind: 0.0 for kind in ORDER}
    for item in work.running.values():
        count = item.count or _candidates(work.view, item.id)
        expected = work.seconds(item.kind, board.estimates, count, item.id.task)
        done[item.kind] += min(expected, max(0.0, board.now - item.started_at))
    # A measurement on the CPU takes all of them.
    more = len(board.machine.cpus) - 1 if work.view.device == "cpu" and board.machine.drains else 0
    cpu_s, device_s, passed = found.cpu_ms / 1000, found.device_ms / 1000, sum(done.values())
    serial_s = max(0.0, cpu_s - more * device_s - passed)
    return _Left(
        work.view.id,
        work.view.device,
        turn(work.view),
        cpu_s=max(0.0, cpu_s - passed - more * done["measure"]),
        device_s=max(0.0, device_s - done["measure"]),
        serial_s=serial_s,
        chain_s=serial_s if board.policy.rounds_per_job == 1 else max(0.0, found.chain_ms / 1000 - max(done.values())),
    )


def _candidates(view: JobView, id: StageId) -> int:
    return next((stage.candidates for stage in view.stages if stage.id == id), 0) or view.trials_per_round
