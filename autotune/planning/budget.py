"""How many trials a job has, how many it may still begin, and whether it has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.planning.gain import is_open, open_tasks
from autotune.planning.view import JobView, RunningView, TaskView
from autotune.reasons import EndReason

# The first batch of a task may be as small as a round divided by this.
_FIRST_BATCH_DIVISOR = 4
# Every task gets this many trials, and one that does all the work of the model so many more. The latter grow with the
# square root of the work: a task of a quarter of it gets half as many.
_EACH = 16
_MORE = 160
# A job is settled when so many times its trials are expected to save less than this share of the latency.
# So is one that would save less than this: to call the kernels of a tiny model takes longer.
_TIMES = 3
_LITTLE = 0.015
_LITTLE_US = 2.0
# What they save of the time of a typical task with n trials is 0.3 / (n + 1), by the logs of ten networks on two CPUs.
# A task that computes slower than the fastest one of its model saves more, and goes on to do so: a depthwise
# convolution at a third of the speed saves a tenth more, after three trials as after thirty.
_TYPICAL = 0.3
_TYPICAL_TRIALS = 1
_MORE_IF_SLOW = 0.2


def batch(job: JobView, trials_in_flight: int, worthwhile: int | None = None, tried: int | None = None) -> int:
    """Return how many candidates the next search may propose; 0 if rounds in flight use the rest of the budget.

    It is 0 too if the job has used the time that its stages may run for, if more trials would gain little, and while it
    is found out whether the model is fast enough.

    While a task has no trial yet, a batch is at most half an equal share of the budget. So even a small budget reaches
    every task, and half of it goes where the first results say that it pays. After that, a batch at most doubles the
    trials of its task, but for half a round, which is always allowed. So after a small first batch no task gets a whole
    round before others have got a second batch.

    Args:
        trials_in_flight: Trials that rounds in flight will add.
        worthwhile: The smallest batch that is worth its search, or None if that is unknown. While a task has no trial
            yet, a batch is at most this or a quarter of a round, whichever is larger. So the whole model is soon tuned
            a little.
        tried: The trials that the task of the search has; None if it is not known which task that is.
    """
    if job.time_used or job.settled or job.stop_at_met:
        return 0
    if job.has_stop_at and any(stage.kind == "confirm" for stage in job.live_stages):
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
    if job.stop_at_met:
        return "stop-at-met"
    if job.trials_done >= job.trials:
        return "budget-used"
    if job.time_used:
        return "time-used"
    if not open_tasks(job):
        return "no-improvement" if any(task.trials for task in job.tasks) else "nothing-to-tune"
    return "little-to-gain" if job.settled else None


@dataclass(frozen=True)
class TaskWork:
    """A task to tune: its floating-point work in the model, its weight included, and the trials that are known."""

    gflop: float
    known: int = 0


def automatic_trials(tasks: Sequence[TaskWork]) -> int:
    """Return the budget of a job. Trials that are known count towards it, but not for other tasks.

    Args:
        tasks: The tasks that can be tuned.
    """
    total = sum(task.gflop for task in tasks)
    shares = [task.gflop / total if total else 1 / len(tasks) for task in tasks]
    wanted = [_EACH + round(_MORE * math.sqrt(share)) for share in shares]
    return max(1, sum(max(count, task.known) for count, task in zip(wanted, tasks, strict=True)))


def settled(job: JobView) -> bool:
    """Return whether three times the trials of a job are expected to save little of its latency."""
    latency_us = saving_us = 0.0
    for task in job.tasks:
        if is_open(job, task):
            if not task.trials or math.isinf(task.best):
                return False
            saving_us += task.weight * task.best * _expected_saving(task, job.fastest)
        if task.running_best and math.isfinite(task.best):
            latency_us += task.weight * task.best
    return saving_us <= max(_LITTLE * latency_us, _LITTLE_US)


def _expected_saving(task: TaskView, fastest: float) -> float:
    """Return the share of a task's time that three times its trials should save.

    It is the mean of what they save for a typical task of its speed and of what the last two thirds of its own trials
    saved. If the first third brought no time, it is the former.
    """
    slower = 1 - task.speed / fastest if fastest else 0.0
    typical = _TYPICAL / (task.trials + _TYPICAL_TRIALS) + _MORE_IF_SLOW * slower**2
    before = task.best_before(task.trials - task.trials // _TIMES)
    return typical if math.isinf(before) else (typical + 1 - task.best / before) / 2
