"""How many trials a job may still start, and whether it is at its end."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.planning.gain import open_tasks
from autotune.planning.view import JobView, RunningView
from autotune.reasons import EndReason

_FIRST_SHARE = 4


def in_flight(job: JobView, running: Sequence[RunningView]) -> int:
    """Trials that rounds on their way will add: searches that run, and batches not yet measured."""
    searching = sum(item.count for item in running if item.id.job == job.id and item.kind == "search")
    return searching + sum(stage.candidates for stage in job.live_stages if stage.kind in ("build", "measure"))


def batch(job: JobView, spoken_for: int, worthwhile: int | None = None) -> int:
    """How many candidates the next search may propose with so many trials in flight; 0 when the budget is spoken for.

    While there are tasks without any trial, a batch is at most half an equal share of the budget: a small
    budget still reaches every task, and half of it goes where the first results say it pays.
    Where a batch of `worthwhile` candidates is worth its search, the first one of a task is no larger than that or
    a quarter of a round: a model is soon tuned in all its parts, if not well.
    """
    tunable = [task for task in job.tasks if not task.exhausted and not task.set_aside]
    left = job.trials - job.trials_done - spoken_for
    if any(not task.running_best for task in tunable):
        share = max(1, job.trials // (2 * len(tunable)))
        first = job.trials_per_round if worthwhile is None else max(worthwhile, job.trials_per_round // _FIRST_SHARE)
        return max(0, min(left, job.trials_per_round, share, first))
    return max(0, min(left, job.trials_per_round))


def ended(job: JobView, running: Sequence[RunningView]) -> EndReason | None:
    """Why a job is at its end, or None: nothing is on its way and nothing more will be."""
    if any(item.id.job == job.id for item in running):
        return None
    if any(stage.kind != "search" for stage in job.live_stages):
        return None
    if job.trials_done >= job.trials:
        return "budget-used"
    if not open_tasks(job):
        return "no-improvement" if any(task.trials for task in job.tasks) else "nothing-to-tune"
    return None
