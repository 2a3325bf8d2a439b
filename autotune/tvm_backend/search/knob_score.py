"""A score of configurations by the values of their knobs: boosted trees, fitted to the trials of one task.

It is all that a search has to go by where a candidate has no loop nest to look at. Nothing here needs TVM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from autotune.strategies.space import Floats, Indices, Knob, Measured, Score, Space, as_array
from autotune.tvm_backend.search.cost_model import relative_throughput

_PARAMETERS = {
    "max_depth": 6,
    "eta": 0.1,
    "gamma": 0.0001,
    "min_child_weight": 1,
    "subsample": 1.0,
    "seed": 43,
    "nthread": 1,
    "tree_method": "hist",
    "base_score": 0.0,
}
_TREES = 100
# With fewer trials than this, the trees rank worse than chance.
_MIN_TRIALS = 8
_MIN_THROUGHPUT = 2.0**-20  # of the best


class KnobScore:
    """Boosted trees on the values of knobs, trained on trials of the same task. Deterministic.

    With an estimate they predict the logarithm of its error, and so know something of what is like no trial.

    Args:
        estimate: An estimate of the throughput.
    """

    def __init__(self, space: Space, trials: Sequence[Measured], estimate: Score | None = None) -> None:
        self._tables = [_table(knob) for knob in space.knobs]
        self._space = space
        self._estimate = estimate
        configurations = as_array((trial.configuration for trial in trials), len(space.knobs))
        labels = throughput(trials)
        if estimate is not None:
            estimated = estimate(configurations)
            # Relative to the best, as the labels are: what cannot run is as far below it in both.
            self._least = _MIN_THROUGHPUT * float(estimated.max())
            labels = np.log2(np.maximum(labels, _MIN_THROUGHPUT)) - self._start(estimated)
            self._mean = float(labels.mean())
            labels -= self._mean
        matrix = xgboost.DMatrix(self._rows(configurations), label=labels, nthread=1)
        self._booster = xgboost.train(dict(_PARAMETERS), matrix, num_boost_round=_TREES)

    def __call__(self, configurations: Indices) -> Floats:
        """Predict the relative throughput, [n]; higher is better."""
        predicted = np.asarray(self._booster.inplace_predict(self._rows(configurations)), dtype=np.float64)
        if self._estimate is None:
            return predicted
        return np.asarray(np.exp2(predicted + self._start(self._estimate(configurations)) + self._mean))

    def _start(self, estimated: Floats) -> Floats:
        """What the trees correct: the logarithms of estimates."""
        return np.asarray(np.log2(np.maximum(estimated, self._least)))

    def _rows(self, configurations: Indices) -> npt.NDArray[np.float32]:
        """Return the values of knobs, [n, features]. Those of a knob that the sketch does not use are NaN."""
        used = self._space.mask[configurations[:, 0]]
        columns = [
            np.where(used[:, index, None], table[configurations[:, index]], np.float32(np.nan))
            for index, table in enumerate(self._tables)
        ]
        return np.concatenate(columns, axis=1)


def train_knob_score(space: Space, trials: Sequence[Measured], estimate: Score | None = None) -> Score | None:
    """Train a score on knob values, on top of an estimate if there is one.

    While there are fewer than 8 trials, or none with a time, it is the estimate itself.
    """
    enough = len(trials) >= _MIN_TRIALS and any(trial.median_us for trial in trials)
    return KnobScore(space, trials, estimate) if enough else estimate


def throughput(trials: Sequence[Measured]) -> Floats:
    """Return best time over time, [trials]: 1 for the best trial, 0 for a failed one."""
    return np.array(relative_throughput(trial.median_us for trial in trials), dtype=np.float64)


def _table(knob: Knob) -> npt.NDArray[np.float32]:
    """Return the features of each value of a knob, [values, features]."""
    return np.array([_features(index, value) for index, value in enumerate(knob.values)], dtype=np.float32)


def _features(index: int, value: Any) -> list[float]:
    """Describe a value: the value itself, or of a tile its index and logarithms.

    The logarithms are those of its factors, and of the extents that they make from inside out.
    """
    if not isinstance(value, tuple):
        return [float(value)]
    logs = [math.log2(max(factor, 1)) for factor in value]
    return [float(index), *logs, *(sum(logs[inner:]) for inner in range(1, len(logs) - 1))]
