"""The draft: boosted trees on knob values, for the inner loop of a search. What survives is judged on features.

A replay costs milliseconds, a draft of 128 configurations less than one. It knows one task only: the trials of other
tasks say nothing about this one's knobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.strategies.base import Measured
from autotune.strategies.space import Floats, Indices, Knob, Space, as_array

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
_ROUNDS = 100
# Below this a forest of trees says less than chance.
_LEAST = 8


class Draft:
    """Deterministic: the same trials give the same scores. Predicts relative throughput; failures count as 0."""

    def __init__(self, space: Space, trials: Sequence[Measured]) -> None:
        import xgboost

        self._tables = [_table(knob) for knob in space.knobs]
        self._space = space
        rows = self._rows(as_array((trial.configuration for trial in trials), len(space.knobs)))
        matrix = xgboost.DMatrix(rows, label=throughput(trials), nthread=1)
        self._booster = xgboost.train(dict(_PARAMETERS), matrix, num_boost_round=_ROUNDS)

    def __call__(self, configurations: Indices) -> Floats:
        """Predicted relative throughput, [n]; higher is better."""
        return np.asarray(self._booster.inplace_predict(self._rows(configurations)), dtype=np.float64)

    def _rows(self, configurations: Indices) -> npt.NDArray[np.float32]:
        """Values of knobs, [n, features]; those of a knob that the sketch does not use are missing."""
        used = self._space.mask[configurations[:, 0]]
        columns = [
            np.where(used[:, at, None], table[configurations[:, at]], np.float32(np.nan))
            for at, table in enumerate(self._tables)
        ]
        return np.concatenate(columns, axis=1)


def train_draft(space: Space, trials: Sequence[Measured]) -> Draft | None:
    """A draft, or None while there is too little to learn from."""
    enough = len(trials) >= _LEAST and any(trial.best_us for trial in trials)
    return Draft(space, trials) if enough else None


def throughput(trials: Sequence[Measured]) -> Floats:
    """Best time over time: 1 for the best trial, 0 for a failed one."""
    best = min((trial.best_us for trial in trials if trial.best_us), default=0.0)
    return np.array([best / trial.best_us if trial.best_us else 0.0 for trial in trials], dtype=np.float64)


def _table(knob: Knob) -> npt.NDArray[np.float32]:
    """What the trees see of each value of a knob, [values, features]."""
    return np.array([_features(at, value) for at, value in enumerate(knob.values)], dtype=np.float32)


def _features(at: int, value: Any) -> list[float]:
    """A tile as its index, the logarithms of its factors, and of the extents that they make from inside out."""
    if not isinstance(value, tuple):
        return [float(value)]
    logs = [math.log2(max(factor, 1)) for factor in value]
    return [float(at), *logs, *(sum(logs[inner:]) for inner in range(1, len(logs) - 1))]
