"""Cheap scores of configurations, which need no replay, for the inner loop of a search.

A replay takes milliseconds for one configuration; a score takes about one for 128 of them. Where every sketch of a
task is tiled on many levels, the score is the cost model itself on features of the loop nest (`NestScore`), so that
it knows the prior and the trials of all tasks of the job. Elsewhere it is boosted trees on the values of the task's
own knobs (`KnobScore`), and the best configurations are replayed and ranked again by the cost model. Without a cost
model, an analytic estimate ranks the loop nests of GPUs (`occupancy.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from autotune.strategies.space import Floats, Indices, Knob, Measured, Space, as_array
from autotune.tvm_backend.search.cost_model import CostModel, relative_throughput
from autotune.tvm_backend.search.features import widen
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.search.occupancy import STRUCTURE, GpuLimits, gpu_throughput
from autotune.tvm_backend.search.tiled_block import TiledSketch

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


class KnobScore:
    """Boosted trees on the values of knobs, trained on trials of the same task. Deterministic."""

    def __init__(self, space: Space, trials: Sequence[Measured]) -> None:
        self._tables = [_table(knob) for knob in space.knobs]
        self._space = space
        rows = self._rows(as_array((trial.configuration for trial in trials), len(space.knobs)))
        matrix = xgboost.DMatrix(rows, label=throughput(trials), nthread=1)
        self._booster = xgboost.train(dict(_PARAMETERS), matrix, num_boost_round=_TREES)

    def __call__(self, configurations: Indices) -> Floats:
        """Predict the relative throughput, [n]; higher is better."""
        return np.asarray(self._booster.inplace_predict(self._rows(configurations)), dtype=np.float64)

    def _rows(self, configurations: Indices) -> npt.NDArray[np.float32]:
        """Return the values of knobs, [n, features]. Those of a knob that the sketch does not use are NaN."""
        used = self._space.mask[configurations[:, 0]]
        columns = [
            np.where(used[:, index, None], table[configurations[:, index]], np.float32(np.nan))
            for index, table in enumerate(self._tables)
        ]
        return np.concatenate(columns, axis=1)


class NestScore:
    """A judgement of the loop nests of configurations.

    Args:
        judge: Estimates the throughput of candidates of a sketch from their decisions, [n]; higher is better.

    Raises:
        ValueError: A sketch of the space has no features of its loop nest.
    """

    def __init__(
        self, knobs: Knobs, nests: NestFeatures, judge: Callable[[TiledSketch, Sequence[Floats]], Floats]
    ) -> None:
        self._judge = judge
        self._values = [_decisions(knob) for knob in knobs.space.knobs]
        self._sketches = [(nests.sketch(instructions), places) for instructions, places in knobs.sketches()]
        if any(sketch is None for sketch, _ in self._sketches):
            raise ValueError("a sketch of the space is not tiled on many levels")

    def __call__(self, configurations: Indices) -> Floats:
        """Predict the relative throughput, [n]; higher is better."""
        scores = np.empty(len(configurations))
        for index in np.unique(configurations[:, 0]):
            members = configurations[:, 0] == index
            sketch, places = self._sketches[index]
            assert sketch is not None, "checked by the constructor"
            decisions = [self._values[place][configurations[members, place]] for place in places]
            scores[members] = self._judge(sketch, decisions)
        return scores


def nest_score(knobs: Knobs, model: CostModel | None) -> NestScore | None:
    """Make a score on loop nests: by the model, or without one by an analytic estimate, which there is for GPUs.

    Returns:
        None where there is neither, or where a sketch is not tiled on many levels.
    """
    nests = NestFeatures(knobs.program, knobs.target)
    with contextlib.suppress(ValueError):
        if model is not None:
            return NestScore(knobs, nests, lambda *made: model.score_rows(widen(nest=nests.rows(*made))))
        sketches = (nests.sketch(instructions) for instructions, _ in knobs.sketches())
        if knobs.target.kind.name == "cuda" and all(item and item.structure == STRUCTURE for item in sketches):
            limits = GpuLimits.of(knobs.target)
            return NestScore(knobs, nests, lambda *made: gpu_throughput(nests.nests(*made), limits))
    return None


def train_knob_score(space: Space, trials: Sequence[Measured]) -> KnobScore | None:
    """Train a score on knob values. None while there are fewer than 8 trials, or none with a time."""
    enough = len(trials) >= _MIN_TRIALS and any(trial.median_us for trial in trials)
    return KnobScore(space, trials) if enough else None


def throughput(trials: Sequence[Measured]) -> Floats:
    """Return best time over time, [trials]: 1 for the best trial, 0 for a failed one."""
    return np.array(relative_throughput(trial.median_us for trial in trials), dtype=np.float64)


def _decisions(knob: Knob) -> npt.NDArray[np.float64]:
    """Return the values of a knob as decisions of TVM's instruction, [values] or [values, factors]."""
    return np.array(knob.values, dtype=np.float64)


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
