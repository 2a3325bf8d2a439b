"""Cheap scores of configurations, which need no replay, for the inner loop of a search.

A replay takes milliseconds for one configuration; a score takes about one for 128 of them. Where every sketch of a
task is tiled on many levels, the score is the cost model itself on features of the loop nest (`NestScore`), so that
it knows the prior and the trials of all tasks of the job. Elsewhere it is boosted trees on the values of the task's
own knobs (`knob_score.py`), and the best configurations are replayed and ranked again by the cost model. On GPUs an
analytic estimate ranks loop nests while there is no cost model (`occupancy.py`), and those of tensor cores also later,
as what the trees start from (`tensor_cores.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.strategies.space import Floats, Indices
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.features import widen
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.search.occupancy import NEST_COSTS, STRUCTURE, GpuLimits, NestCosts, gpu_throughput
from autotune.tvm_backend.search.pipeline_estimate import PipelineSketch, ProductExtents
from autotune.tvm_backend.search.tensor_cores import (
    TENSOR_COSTS,
    TensorCosts,
    TensorNests,
    TensorSketch,
    tensor_throughput,
)
from autotune.tvm_backend.types import PlainInstruction

Judge = Callable[[Sequence[Floats]], Floats]  # of the decisions of candidates of a sketch
ReadTiles = Callable[[Sequence[Floats]], TensorNests]


@dataclass(frozen=True)
class GpuCosts:
    """What kernels cost on a GPU, as loop nests and on tensor cores."""

    nests: NestCosts = NEST_COSTS
    tensor_cores: TensorCosts = TENSOR_COSTS


GPU_COSTS = GpuCosts()


class NestScore:
    """A judgement of the loop nests of configurations.

    Args:
        judges: For each sketch, what estimates the throughput of candidates from their decisions, [n]; higher is
            better.
    """

    def __init__(self, knobs: Knobs, judges: Sequence[Judge]) -> None:
        # As decisions of TVM's instructions: [values] or [values, factors].
        self._values = [np.array(knob.values, dtype=np.float64) for knob in knobs.space.knobs]
        places = [places for _, places in knobs.sketches()]
        self._sketches = list(zip(judges, places, strict=True))

    def __call__(self, configurations: Indices) -> Floats:
        """Predict the relative throughput, [n]; higher is better."""
        scores = np.empty(len(configurations))
        for index in np.unique(configurations[:, 0]):
            members = configurations[:, 0] == index
            judge, places = self._sketches[index]
            scores[members] = judge([self._values[place][configurations[members, place]] for place in places])
        return scores


def nest_score(knobs: Knobs, model: CostModel) -> NestScore | None:
    """Return a score by a cost model; None where a sketch is not tiled on many levels."""
    nests = NestFeatures(knobs.program, knobs.target)
    judges = [_by_model(nests, instructions, model) for instructions, _ in knobs.sketches()]
    return _score(knobs, judges)


def estimate(knobs: Knobs) -> NestScore | None:
    """Return an analytic score, which there is for products on GPUs; None elsewhere."""
    if knobs.target.kind.name != "cuda":
        return None
    nests = NestFeatures(knobs.program, knobs.target)
    return _score(knobs, [judge_of(nests, instructions) for instructions, _ in knobs.sketches()])


def _score(knobs: Knobs, judges: Sequence[Judge | None]) -> NestScore | None:
    complete = [judge for judge in judges if judge is not None]
    return NestScore(knobs, complete) if len(complete) == len(judges) else None


def _by_model(nests: NestFeatures, instructions: Sequence[PlainInstruction], model: CostModel) -> Judge | None:
    sketch = nests.sketch(instructions)
    return None if sketch is None else lambda decisions: model.score_rows(widen(nest=nests.rows(sketch, decisions)))


def judge_of(
    nests: NestFeatures, instructions: Sequence[PlainInstruction], costs: GpuCosts = GPU_COSTS
) -> Judge | None:
    """Return the analytic judge of a sketch on a GPU, given in JSON form; None where there is none."""
    limits = GpuLimits.of(nests.target)
    sketch = nests.sketch(instructions)
    if sketch is not None and sketch.structure == STRUCTURE:
        return lambda decisions: gpu_throughput(nests.nests(sketch, decisions), limits, costs.nests)
    if nests.product is None:
        return None
    read = _tiles_of_pipeline(nests, instructions) or _tiles_on_tensor_cores(nests.product, instructions)
    extents = nests.product
    return (
        None
        if read is None
        else lambda decisions: tensor_throughput(read(decisions), extents, limits, costs.tensor_cores)
    )


def _tiles_of_pipeline(nests: NestFeatures, instructions: Sequence[PlainInstruction]) -> ReadTiles | None:
    sketch = PipelineSketch.read(instructions)
    product = None if sketch is None else ProductExtents.read(nests.program)
    if sketch is None or product is None:
        return None
    return lambda decisions: sketch.nests(decisions, product)


def _tiles_on_tensor_cores(extents: tuple[int, int], instructions: Sequence[PlainInstruction]) -> ReadTiles | None:
    """Those of MetaSchedule's own sketches, which GPUs before `sm_80` have."""
    sketch = TensorSketch.read(instructions)
    return None if sketch is None else lambda decisions: TensorNests.of(sketch, decisions, extents)
