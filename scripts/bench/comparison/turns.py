"""Time several versions of a model in this process, by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

_SLOW_S = 0.2  # a version whose run takes longer is slow
_TURN_S = 0.05


def alternate(runners: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Time several versions of a model in turns, so that a change of the machine affects all of them.

    In each turn a version runs for at least 50 ms. A version whose run takes more than 200 ms takes part in every fifth
    turn only.

    Args:
        runners: For each version, a function that runs it once.
        turns: How many turns there are.

    Returns:
        The median time of a run of each version, in milliseconds.
    """
    first = {name: _seconds(run, 1) for name, run in runners.items()}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns):
        for name, run in runners.items():
            if first[name] < _SLOW_S or turn % 5 == 0:
                times[name].append(_seconds(run, max(1, round(_TURN_S / first[name]))))
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def _seconds(run: Callable[[], object], count: int) -> float:
    """Return the seconds that a run takes. A first run, which does not count, wakes the thread pool."""
    run()
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count
