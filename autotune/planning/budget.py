"""How many trials a job may still begin, and whether it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.planning.gain import open_tasks
from autotune.planning.view import JobView, RunningView
from autotune.reasons import EndReason

# The first batch of a task may be as small as a round divided by this.
_FIRST_BATCH_DIVISOR = 4


def in_flight(job: JobView, running: Sequence[RunningView]) -> int:
    """Return how many trials the rounds in flight will add: searches that run, and batches not yet measured."""
    searching = sum(stage.count for stage in running if stage.id.job == job.id and stage.kind == "search")
    return searching + sum(stage.candidates for stage in job.live_stages if stage.kind in ("build", "measure"))


def batch(job: JobView, trials_in_flight: int, worthwhile: int | None = None, tried: int | None = None) -> int:
    """Return how many candidates the next search may propose; 0 if rounds in flight use the rest of the budget.

    It is 0 too if the job has used the time that its stages may run for, if more trials would gain little, and while it
    is found out whether the model is fast enough.

    While a task has no trial yet, a batch is at most half an equal share of the budget. So even a small budget reaches
    every task, and half of it goes where the first results say that it pays. After that, a batch at most doubles the
    trials of its task, but for half a round, which is always allowed. So after a small first batch no task gets a whole
    round before others have got a second batch.

    Args:
        job: The job.
        trials_in_flight: Trials that rounds in flight will add.
        worthwhile: The smallest batch that is worth its search, or None if that is unknown. While a task has no trial
            yet, a batch is at most this or a quarter of a round, whichever is larger. So the whole model is soon tuned
            a little.
        tried: The trials that the task of the search has; None if it is not known which task that is.
    """
    if job.time_used or job.settled or job.level_met or any(stage.kind == "confirm" for stage in job.live_stages):
        return 0
    tunable = [task for task in job.tasks if not task.exhausted and not task.set_aside]
    left = job.trials - job.trials_done - trials_in_flight
    if any(not task.running_best for task in tunable):
        share = max(1, job.trials // (2 * len(tunable)))
        quarter = job.trials_per_round // _FIRST_BATCH_DIVISOR
        first = job.trials_per_round if worthwhile is None else max(worthwhile, quarter)
        return max(0, min(left, job.trials_per_round, share, first))
    most = job.trials_per_round if tried is None else max(job.trials_per_round // 2, tried, 1)
    return max(0, min(left, job.trials_per_round, most))


def ended(job: JobView, running: Sequence[RunningView]) -> EndReason | None:
    """Return why a job has ended, or None if it has not.

    A job has ended if none of its stages runs, no round is in flight, and no further round may begin.
    """
    if any(stage.id.job == job.id for stage in running):
        return None
    if any(stage.kind != "search" for stage in job.live_stages):
        return None
    if job.level_met:
        return "level-met"
    if job.trials_done >= job.trials:
        return "budget-used"
    if job.time_used:
        return "time-used"
    if not open_tasks(job):
        return "no-improvement" if any(task.trials for task in job.tasks) else "nothing-to-tune"
    return "little-to-gain" if job.settled else None
