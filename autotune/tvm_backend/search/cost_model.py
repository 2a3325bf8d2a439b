"""The cost model: gradient-boosted trees that rank candidates by features of their loop nests.

A candidate is a bag of rows (`features.py`). The prediction is the sum over its rows; the target is the relative
throughput, best time of the task over the candidate's time, so that one model serves many tasks (Chen et al.,
Learning to Optimize Tensor Programs, NeurIPS 2018, section 3; Zheng et al., Ansor, OSDI 2020, section 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

# Shallow trees that each see a third of the features: on trials of tasks that a model has not seen, ranks agree with
# the measured ones to 0.5 (Spearman), and to 0.36 with deep trees that see all (scripts/train_prior.py).
_PARAMETERS = {
    "max_depth": 4,
    "gamma": 0.001,
    "min_child_weight": 2,
    "subsample": 0.7,
    "colsample_bytree": 0.3,
    "eta": 0.1,
    "seed": 43,
    "nthread": 1,
    "tree_method": "hist",
    "base_score": 0.0,
}
_LEAST_TREES, _MOST_TREES = 25, 150


@dataclass(frozen=True)
class Samples:
    """Rows of many candidates. `rows` is [rows, features]; `owner` [rows] says whose row each is, ascending."""

    rows: Array
    owner: npt.NDArray[np.int64]

    @classmethod
    def pack(cls, features: Sequence[Array]) -> Samples:
        counts = [len(rows) for rows in features]
        return cls(np.concatenate(list(features)), np.repeat(np.arange(len(features)), counts))

    def total(self, per_row: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
        """Sum a value per row to a value per candidate, [count]."""
        return np.asarray(np.bincount(self.owner, weights=per_row, minlength=count), dtype=np.float64)


def relative_throughput(times_us: Iterable[float | None]) -> list[float]:
    """Best time over time: 1 for the best trial, 0 for a failed one, whose time is None or 0."""
    times = [time or 0.0 for time in times_us]
    best = min(filter(None, times), default=0.0)
    return [best / time if time else 0.0 for time in times]


class CostModel:
    """A trained booster. Deterministic: the same samples give the same model and the same scores."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def train(cls, features: Sequence[Array], throughput: Sequence[float], start: CostModel | None = None) -> CostModel:
        """Fit to relative throughputs in [0, 1], one for each candidate; errors weigh as much as throughput.

        The more candidates, the more trees, up to 150. With `start`, what is fitted is what that model leaves
        unexplained: its trees stay, and the new ones follow.
        """
        import xgboost

        samples = Samples.pack(features)
        label = np.asarray(throughput, dtype=np.float64)
        weight = np.maximum(label, 0.05)[samples.owner]

        def squared_error(margin: npt.NDArray[Any], _: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            residual = (samples.total(margin, len(label)) - label)[samples.owner]
            return residual * weight, weight

        matrix = xgboost.DMatrix(samples.rows, nthread=1)
        known = start._booster if start else None
        trees = min(_MOST_TREES, _LEAST_TREES + len(label) // 4)
        return cls(xgboost.train(dict(_PARAMETERS), matrix, trees, obj=squared_error, xgb_model=known))

    @classmethod
    def load(cls, path: Path, columns: int) -> CostModel | None:
        """The model that `serialise` gave, or None where there is none of so many features: it can be trained again."""
        import xgboost

        try:
            model = cls.deserialise(path.read_bytes())
        except (OSError, xgboost.core.XGBoostError):
            return None
        return model if model._booster.num_features() == columns else None

    @classmethod
    def deserialise(cls, data: bytes) -> CostModel:
        """The model that `serialise` gave. Raises xgboost's XGBoostError for anything else."""
        import xgboost

        return cls(xgboost.Booster({"nthread": 1}, model_file=bytearray(data)))

    def serialise(self) -> bytes:
        return bytes(self._booster.save_raw("ubj"))

    def score_rows(self, rows: Array) -> npt.NDArray[np.float64]:
        """As `score`, of candidates that have one row each, [n, columns]."""
        return np.asarray(self._booster.inplace_predict(rows, predict_type="margin"), dtype=np.float64)

    def score(self, features: Sequence[Array]) -> npt.NDArray[np.float64]:
        """Predicted relative throughput of each candidate; higher is better."""
        samples = Samples.pack(features)
        return samples.total(self.score_rows(samples.rows), len(features))
