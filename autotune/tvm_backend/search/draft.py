"""The draft: a score of configurations that needs no replay, for the inner loop of a search.

A replay costs milliseconds, a draft of 128 configurations about one. Where every sketch of a task is tiled on many
levels, it is the cost model itself, on features of the loop nest: it knows what the prior and all tasks of the job
have told. Elsewhere it is boosted trees on the values of the task's own knobs, and what survives is replayed and
judged by the cost model.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.strategies.base import Measured
from autotune.strategies.space import Floats, Indices, Knob, Space, as_array
from autotune.tvm_backend.search.cost_model import CostModel, relative_throughput
from autotune.tvm_backend.search.features import widen
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import Nests

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


class NestDraft:
    """The cost model on the loop nests of configurations."""

    def __init__(self, knobs: Knobs, nests: Nests, model: CostModel) -> None:
        """Raises ValueError for a space with a sketch that `nests` knows nothing of."""
        self._nests, self._model = nests, model
        self._values = [_decisions(knob) for knob in knobs.space.knobs]
        self._sketches = [(nests.sketch(instructions), places) for instructions, places in knobs.sketches()]
        if any(sketch is None for sketch, _ in self._sketches):
            raise ValueError("a sketch has no nest that is known")

    def __call__(self, configurations: Indices) -> Floats:
        """Predicted relative throughput, [n]; higher is better."""
        scores = np.empty(len(configurations))
        for index in np.unique(configurations[:, 0]):
            members = configurations[:, 0] == index
            sketch, places = self._sketches[index]
            assert sketch is not None, "the constructor has seen to that"
            decisions = [self._values[place][configurations[members, place]] for place in places]
            scores[members] = self._model.score_rows(widen(nest=self._nests.rows(sketch, decisions)))
        return scores


def nest_draft(knobs: Knobs, model: CostModel | None) -> NestDraft | None:
    """A draft on loop nests, or None where there is no model or a sketch is not tiled."""
    with contextlib.suppress(ValueError):
        return NestDraft(knobs, Nests(knobs.program, knobs.target), model) if model else None
    return None


def train_draft(space: Space, trials: Sequence[Measured]) -> Draft | None:
    """A draft, or None while there is too little to learn from."""
    enough = len(trials) >= _LEAST and any(trial.best_us for trial in trials)
    return Draft(space, trials) if enough else None


def throughput(trials: Sequence[Measured]) -> Floats:
    """Best time over time: 1 for the best trial, 0 for a failed one."""
    return np.array(relative_throughput(trial.best_us for trial in trials), dtype=np.float64)


def _decisions(knob: Knob) -> npt.NDArray[np.float64]:
    """The values of a knob as TVM decides them, [values] or [values, factors]."""
    return np.array(knob.values, dtype=np.float64)


def _table(knob: Knob) -> npt.NDArray[np.float32]:
    """What the trees see of each value of a knob, [values, features]."""
    return np.array([_features(at, value) for at, value in enumerate(knob.values)], dtype=np.float32)


def _features(at: int, value: Any) -> list[float]:
    """A tile as its index, the logarithms of its factors, and of the extents that they make from inside out."""
    if not isinstance(value, tuple):
        return [float(value)]
    logs = [math.log2(max(factor, 1)) for factor in value]
    return [float(at), *logs, *(sum(logs[inner:]) for inner in range(1, len(logs) - 1))]
