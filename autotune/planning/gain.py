"""Which task gets the next round: the one whose next trial promises to save most of the model's latency.

A task that promises nothing more gets none.
"""

from __future__ import annotations

import math

from autotune.planning.view import JobView, TaskView

# The recent improvement is that of this many rounds.
_RECENT_ROUNDS = 3
# The weight of the recent improvement; the rest is the weight of the prediction.
_RECENT_SHARE = 0.5
# The task that computes fastest is expected to save this share less than one of no speed. On replayed logs the tasks'
# times fall by 1.3% more with it than without (scripts/bench/replay_allocation.py).
_LESS_IF_FASTEST = 0.95


def expected_gain(task: TaskView, per_round: int, fastest: float = 0.0) -> float:
    """Return the microseconds of model latency that one more trial of a task is expected to save.

    It is the mean of two values: what the last rounds saved per trial, and what the next trial would save if the best
    time fell like 1/trials (Zheng et al., Ansor, OSDI 2020, section 6.2). A task that computes at a high speed is close
    to what the machine can do, and is expected to save less.

    Args:
        fastest: The highest speed of a task of the job; see `TaskView.speed`. 0 if speeds do not count.

    Returns:
        The gain; infinity for a task that has no time yet.
    """
    if not task.running_best or math.isinf(task.best):
        return math.inf
    trials = min(_RECENT_ROUNDS * per_round, len(task.running_best) - 1)
    before = task.best_before(trials)
    recent = (before - task.best) / trials if trials and math.isfinite(before) else 0.0
    predicted = task.best / len(task.running_best)
    promise = 1 - _LESS_IF_FASTEST * task.speed / fastest if fastest else 1.0
    return task.weight * promise * (_RECENT_SHARE * recent + (1 - _RECENT_SHARE) * predicted)


def converged(task: TaskView, per_round: int, patience: int, min_gain: float) -> bool:
    """Return whether the last rounds have improved the best time of a task too little.

    Args:
        per_round: The trials of a round.
        patience: The number of rounds; 0 for never.
        min_gain: The share of the best time that they must save.
    """
    waited = patience * per_round
    if not patience or len(task.running_best) <= waited:
        return False
    # A task of which no trial ever succeeded converges too: infinity is no better than infinity. It would otherwise
    # use up the budget.
    return task.best >= task.best_before(waited) * (1 - min_gain)


def is_open(job: JobView, task: TaskView) -> bool:
    """Return whether more trials could still improve a task of a job."""
    closed = task.exhausted or task.set_aside
    return not closed and not converged(task, job.trials_per_round, job.patience, job.min_gain)


def open_tasks(job: JobView) -> tuple[int, ...]:
    """Return the indices of the tasks that more trials could still improve."""
    return tuple(index for index, task in enumerate(job.tasks) if is_open(job, task))
