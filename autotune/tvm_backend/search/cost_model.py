"""The cost model: gradient-boosted trees that rank candidates by features of their loop nests.

A candidate has one or more feature rows (`features.py`). Its prediction is the sum over its rows. The target is the
relative throughput, the best time of the task over the candidate's time, so that one model serves many tasks (Chen
et al., Learning to Optimize Tensor Programs, NeurIPS 2018, section 3; Zheng et al., Ansor, OSDI 2020, section 5.2).
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from autotune.regular_file import read_regular

Array = npt.NDArray[np.float32]

# Shallow trees that each see a third of the features. On tasks that the model has not seen, its ranks correlate with
# the measured ones by 0.5 (Spearman); with deep trees that see all features, by 0.36 (scripts/models/train_prior.py).
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
_MIN_TREES = 25
_MAX_TREES = 150
# One more tree for every so many candidates.
_CANDIDATES_PER_TREE = 4


@dataclass(frozen=True)
class PackedFeatures:
    """The feature rows of many candidates in one array.

    Attributes:
        rows: [rows, features].
        owner: Index of the candidate that each row belongs to, ascending, [rows].
    """

    rows: Array
    owner: npt.NDArray[np.int64]

    @classmethod
    def pack(cls, features: Sequence[Array]) -> PackedFeatures:
        """Concatenate the rows of candidates, each [rows of the candidate, features]."""
        counts = [len(rows) for rows in features]
        return cls(np.concatenate(list(features)), np.repeat(np.arange(len(features)), counts))

    def total(self, per_row: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
        """Sum a value per row, [rows], to a value per candidate, [count]."""
        return np.asarray(np.bincount(self.owner, weights=per_row, minlength=count), dtype=np.float64)


def relative_throughput(times_us: Iterable[float | None]) -> list[float]:
    """Return best time over time: 1 for the best trial, 0 for a failed one, whose time is None or 0."""
    times = [time or 0.0 for time in times_us]
    best = min(filter(None, times), default=0.0)
    return [best / time if time else 0.0 for time in times]


class CostModel:
    """A trained booster. The same samples give the same model and the same scores."""

    def __init__(self, booster: xgboost.Booster) -> None:
        self._booster = booster

    @classmethod
    def train(
        cls,
        features: Sequence[Array],
        throughput: Sequence[float],
        start: CostModel | None = None,
        max_trees: int = _MAX_TREES,
    ) -> CostModel:
        """Fit to the relative throughputs of candidates. Errors are weighted by throughput.

        The number of trees grows with the number of candidates.

        Args:
            features: Of each candidate, [rows of the candidate, features].
            throughput: Of each candidate, in [0, 1].
            start: A model whose residuals are fitted. Its trees stay, and the new ones follow.
            max_trees: How many trees are fitted at most.
        """
        packed = PackedFeatures.pack(features)
        label = np.asarray(throughput, dtype=np.float64)
        weight = np.maximum(label, 0.05)[packed.owner]

        def squared_error(margin: npt.NDArray[Any], _: xgboost.DMatrix) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            residual = (packed.total(margin, len(label)) - label)[packed.owner]
            return residual * weight, weight

        matrix = xgboost.DMatrix(packed.rows, nthread=1)
        before = start._booster if start else None
        trees = min(max_trees, _MIN_TREES + len(label) // _CANDIDATES_PER_TREE)
        return cls(xgboost.train(dict(_PARAMETERS), matrix, trees, obj=squared_error, xgb_model=before))

    @classmethod
    def load(cls, path: Path, columns: int) -> CostModel | None:
        """Read the model that `serialise` gave. None where there is none with so many features; train it again."""
        try:
            model = cls.deserialise(read_regular(path))
        except (OSError, xgboost.core.XGBoostError):
            return None
        return model if model._booster.num_features() == columns else None

    @classmethod
    def deserialise(cls, data: bytes) -> CostModel:
        """Make the model from what `serialise` gave.

        Raises:
            xgboost.core.XGBoostError: the data are anything else.
        """
        return cls(xgboost.Booster({"nthread": 1}, model_file=bytearray(data)))

    def serialise(self) -> bytes:
        """Return the model in XGBoost's UBJSON format."""
        return bytes(self._booster.save_raw("ubj"))

    def score_rows(self, rows: Array) -> npt.NDArray[np.float64]:
        """Predict as `score` does, for candidates that have one row each, [n, features] to [n]."""
        return np.asarray(self._booster.inplace_predict(rows, predict_type="margin"), dtype=np.float64)

    def score(self, features: Sequence[Array]) -> npt.NDArray[np.float64]:
        """Predict the relative throughput of each candidate, [n]; higher is better."""
        packed = PackedFeatures.pack(features)
        return packed.total(self.score_rows(packed.rows), len(features))


@lru_cache
def prior(target_kind: str) -> CostModel | None:
    """Load the cost model that is shipped for a kind of target, such as `llvm`; None for a kind that has none.

    It was trained on measurements of random layers (`models/train_prior.py`); none of them is taken from a network. It
    knows which loop nests suit a kind of device, well enough to leave out hopeless candidates from the first batch on.
    A job's own cost model is fitted on top of it.
    """
    packed = files("autotune.tvm_backend.search").joinpath("priors", f"{target_kind}.ubj.xz")
    return CostModel.deserialise(lzma.decompress(packed.read_bytes())) if packed.is_file() else None
