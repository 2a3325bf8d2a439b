"""Cheap scores of configurations, which need no replay, for the inner loop of a search.

A replay takes milliseconds for one configuration; a score takes about one for 128 of them. Where every sketch of a
task is tiled on many levels, the score is the cost model itself on features of the loop nest (`NestScore`), so that
it knows the prior and the trials of all tasks of the job. Elsewhere it is boosted trees on the values of the task's
own knobs (`knob_score.py`), and the best configurations are replayed and ranked again by the cost model. Without a cost
model, an analytic estimate ranks the loop nests of GPUs (`occupancy.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from autotune.strategies.space import Floats, Indices, Knob
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.features import widen
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.search.occupancy import STRUCTURE, GpuLimits, gpu_throughput
from autotune.tvm_backend.search.tiled_block import TiledSketch


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


def _decisions(knob: Knob) -> npt.NDArray[np.float64]:
    """Return the values of a knob as decisions of TVM's instruction, [values] or [values, factors]."""
    return np.array(knob.values, dtype=np.float64)
