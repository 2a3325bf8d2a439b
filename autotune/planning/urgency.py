"""The order of jobs: by priorities that age, and by the time by which a job must be served."""

from __future__ import annotations

from autotune.planning.view import JobView, Kind

# The order of a job's own stages: a round in flight holds part of the budget and results that the next search could
# use, so it is finished before another begins. A confirmation may end the job.
STAGE_ORDER: dict[Kind, int] = {"confirm": 0, "train": 1, "measure": 2, "build": 3, "search": 4}
# One step of priority is worth this many seconds of waiting. All jobs age alike, so the order of two jobs never
# changes: a job of priority p counts as submitted p times this earlier.
AGING_S = 4 * 3600.0
# A job that has a ready stage and had none started for this many seconds goes before all others.
STARVING_S = 900.0
# The remaining time of a job with a deadline is multiplied by this: estimates err, and the machine is shared.
_DEADLINE_CAUTION = 1.5


def turn(job: JobView) -> tuple[float, int]:
    """Return the sort key that puts jobs in the order of their turn: by priority and age, then by id."""
    return job.submitted_at - job.priority * AGING_S, job.id


def must_start_by(job: JobView, need_s: float) -> float:
    """Return the time from which a job goes before all others.

    Args:
        job: The job.
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
