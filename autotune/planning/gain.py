"""Which task deserves the next round: weight times the improvement that one more trial promises."""

from __future__ import annotations

import math

from autotune.planning.view import JobView, TaskView

_WINDOW_ROUNDS = 3
_HISTORY_SHARE = 0.5


def expected_gain(task: TaskView, per_round: int) -> float:
    """Microseconds of model latency that one more trial of this task is expected to save.

    The mean of what the last rounds saved per trial and of what is left to save if the time kept falling
    like 1/trials (Zheng et al., Ansor, OSDI 2020, section 6.2). Infinite for a task with no time yet.
    """
    if not task.running_best or math.isinf(task.best):
        return math.inf
    window = min(_WINDOW_ROUNDS * per_round, len(task.running_best) - 1)
    before = task.best_before(window)
    recent = (before - task.best) / window if window and math.isfinite(before) else 0.0
    ahead = task.best / len(task.running_best)
    return task.weight * (_HISTORY_SHARE * recent + (1 - _HISTORY_SHARE) * ahead)


def converged(task: TaskView, per_round: int, patience: int, min_gain: float) -> bool:
    """Whether `patience` rounds of trials have improved the best time by less than the share `min_gain`."""
    waited = patience * per_round
    if not patience or len(task.running_best) <= waited:
        return False
    # Where nothing has ever run, infinity is no better than infinity: more of the same would use up the budget.
    return task.best >= task.best_before(waited) * (1 - min_gain)


def is_open(job: JobView, task: TaskView) -> bool:
    """Whether more trials could still improve a task of a job."""
    closed = task.exhausted or task.set_aside
    return not closed and not converged(task, job.trials_per_round, job.patience, job.min_gain)


def open_tasks(job: JobView) -> tuple[int, ...]:
    """The tasks of a job that more trials could still improve."""
    return tuple(index for index, task in enumerate(job.tasks) if is_open(job, task))
