"""Sum the best times of a model's tasks, and judge by them whether the model may be fast enough.

The whole of it is compiled and timed only later.
"""

from __future__ import annotations

from collections.abc import Iterable

# Times of the whole model differ by 1% from process to process. A promise is that much better than the level.
_MARGIN = 0.99


def estimate_ms(tasks: Iterable[tuple[int, float | None]]) -> float | None:
    """Return the sum of the best times in milliseconds; None while a task has none, or if there is no task.

    Args:
        tasks: The weight and the best time in microseconds of each task that can be tuned.
    """
    total = 0.0
    for weight, best_us in tasks:
        if best_us is None:
            return None
        total += weight * best_us / 1e3
    return total or None


def tasks_sum_ms(best_us: Iterable[float | None], weights: Iterable[int]) -> float | None:
    """Return the sum of the best times there are in milliseconds; None while no task that counts has one.

    Args:
        best_us: The best time of each task in microseconds.
        weights: How often the model runs each of them.
    """
    known = [best * weight for best, weight in zip(best_us, weights, strict=False) if best is not None and weight]
    return sum(known) / 1e3 if known else None


def promises(estimate: float | None, ratio: float, level_ms: float) -> bool:
    """Return whether the whole model is expected to be fast enough.

    Args:
        estimate: What `estimate_ms` returned.
        ratio: How many times as long as the estimate the model took when it was last timed; 1 if it never was.
        level_ms: How long it may take.
    """
    return estimate is not None and estimate * ratio <= level_ms * _MARGIN
