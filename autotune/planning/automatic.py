"""The budget of a job that was given none: how many trials its tasks may take, and when more would gain little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.planning.gain import is_open
from autotune.planning.view import JobView, TaskView

# Every task gets this many trials, and one that does all the work of the model so many more. The latter grow with the
# square root of the work: a task of a quarter of it gets half as many.
_EACH, _MORE = 16, 160
# A job is settled when so many times its trials are expected to save less than this share of the latency.
# So is one that would save less than this: to call the kernels of a tiny model takes longer.
_TIMES, _LITTLE, _LITTLE_US = 3, 0.015, 2.0
# What they save of the time of a typical task with n trials is 0.3 / (n + 1), by the logs of ten networks on two CPUs.
# A task that computes slower than the fastest one of its model saves more, and goes on to do so: a depthwise
# convolution at a third of the speed saves a tenth more, after three trials as after thirty.
_TYPICAL, _TYPICAL_TRIALS = 0.3, 1
_MORE_IF_SLOW = 0.2


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
