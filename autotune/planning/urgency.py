"""Whose turn it is: priorities that age, and the moment by which a job must be served."""

from __future__ import annotations

from autotune.planning.view import JobView

# One step of priority is worth this much waiting. As every job ages alike, the order of two jobs never
# changes with time: a job of priority p counts as submitted p times this earlier.
AGING_S = 4 * 3600.0
# A job that has something to do and had no stage started for so long goes before all others.
STARVING_S = 900.0
# Estimates err, and the machine is shared: a deadline is pursued as if its work took longer.
_DEADLINE_CAUTION = 1.5


def turn(job: JobView) -> tuple[float, int]:
    """Jobs in the order of their turn, least first: by priority and age, then by id."""
    return job.submitted_at - job.priority * AGING_S, job.id


def must_start_by(job: JobView, need_s: float) -> float:
    """The moment from which a job goes before all others: it starves, or else it would miss its deadline."""
    starves_at = job.served_at + STARVING_S
    if job.deadline is None:
        return starves_at
    return min(starves_at, job.deadline - need_s * _DEADLINE_CAUTION)


def misses(deadline: float | None, need_s: float, now: float) -> bool:
    """Whether a job that needs so long is expected to end after its deadline; never without one."""
    return deadline is not None and now + need_s > deadline
