"""Features of candidates: what the cost model sees.

A candidate has one or more feature rows. One whose trace tiles a block on many levels has one row, read off its trace
(`nest.py`). Any other has a row for each buffer store of its lowered program (TVM's per-store features). Each kind
has its own columns; in a row of one kind, the columns of the other are missing (NaN).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

from autotune.storage.formats import Trial
from autotune.tvm_backend.search.cost_model import Array
from autotune.tvm_backend.search.design_space import plain_trace, replay, tune_context
from autotune.tvm_backend.search.nest import COLUMNS as NEST_COLUMNS
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.types import IRModule, MeasureCandidate, PlainTrace, Target

_OPERATIONS = ("mad", "add_sub", "mul", "div_mod", "compare", "math_call", "other_call")
_POSITIONS = (
    *("none", "inner_spatial", "middle_spatial", "outer_spatial"),
    *("inner_reduction", "middle_reduction", "outer_reduction", "mixed"),
)
_GPU_LOOPS = tuple(f"{kind}_{axis}" for kind in ("block", "thread") for axis in "xyz")
_ACCESSES = ("read", "written", "read_and_written")
_TOUCHED = ("bytes", "unique_bytes", "lines", "unique_lines")
_REUSES = ("reused_by_loop", "reused_serially", "not_reused")
# Defaults of TVM's PerStoreFeature.
_BUFFERS = 5
_INTENSITY_SAMPLES = 10

# TVM's per-store features in their order; sizes and counts are logarithms.
STORE_COLUMNS = (
    *(f"{kind}_{operation}" for kind in ("float", "int") for operation in _OPERATIONS),
    *("bool_operations", "selects"),
    *(
        f"{kind}_{fact}"
        for kind in ("vectorized", "unrolled", "parallel")
        for fact in ("loops", "iterations", "innermost_extent", *(f"at_{position}" for position in _POSITIONS))
    ),
    *("is_gpu", *_GPU_LOOPS, "virtual_thread"),
    *(
        f"buffer{index}_{fact}"
        for index in range(_BUFFERS)
        for fact in itertools.chain(
            *(_ACCESSES, _TOUCHED, _REUSES),
            ("reuse_distance_iterations", "reuse_distance_bytes", "reuse_count"),
            *((f"{touched}_per_reuse" for touched in _TOUCHED), ("stride",)),
        )
    ),
    *(f"arithmetic_intensity{index}" for index in range(_INTENSITY_SAMPLES)),
    *("allocated_bytes", "allocated_in_all", "loops_outside_allocation", "loops_inside_allocation"),
    *("iterations", "loops", "unroll_limit"),
)
COLUMNS = (*(f"nest_{name}" for name in NEST_COLUMNS), *(f"store_{name}" for name in STORE_COLUMNS))
WIDTH = len(COLUMNS)


class FeatureExtractor:
    """Extracts features of the candidates of one program. Each result is [rows of the candidate, WIDTH], float32.

    Args:
        program: The module of the task, not scheduled yet.
        target: The TVM target that the candidates are compiled for.
    """

    def __init__(self, program: IRModule, target: Target) -> None:
        self._program = program
        self._target = target
        self.nests = NestFeatures(program, target)

    def of_candidates(self, candidates: Sequence[MeasureCandidate]) -> list[Array]:
        """Return the features of MetaSchedule's measure candidates, in order."""
        traces = [plain_trace(item.sch.trace) for item in candidates]
        return self._of(traces, lambda wanted: [candidates[index] for index in wanted])

    def of_trials(self, trials: Sequence[Trial]) -> list[Array]:
        """Return the features of trials, in order. A trial that has to be replayed takes milliseconds."""
        traces = [trial.trace for trial in trials]
        return self._of(traces, lambda wanted: replay([trials[index] for index in wanted], self._program, self._target))

    def _of(
        self, traces: Sequence[PlainTrace], measure_candidates: Callable[[list[int]], list[MeasureCandidate]]
    ) -> list[Array]:
        nests = self.nests.of_traces(traces)
        lowered = [index for index, row in enumerate(nests) if row is None]
        stores = dict(zip(lowered, self._stores(measure_candidates(lowered)) if lowered else [], strict=True))
        return [widen(nest=row) if row is not None else widen(store=stores[index]) for index, row in enumerate(nests)]

    def _stores(self, items: list[MeasureCandidate]) -> list[Array]:
        """Return TVM's per-store features of measure candidates, each [stores, store columns]."""
        context = tune_context(self._program, self._target)
        extractor = PerStoreFeature(buffers_per_store=_BUFFERS, arith_intensity_curve_num_samples=_INTENSITY_SAMPLES)
        return [np.asarray(item.numpy(), dtype=np.float32) for item in extractor.extract_from(context, items)]


def widen(*, nest: Array | None = None, store: Array | None = None) -> Array:
    """Add the columns of the other kind, as NaN, to rows of one kind. One of both is given.

    Args:
        nest: Features of loop nests, [rows, nest columns].
        store: Features of stores, [rows, store columns].

    Returns:
        The rows, [rows, WIDTH].
    """
    rows = store if nest is None else nest
    assert rows is not None, "one kind is given"
    wide = np.full((len(rows), WIDTH), np.nan, dtype=np.float32)
    wide[:, slice(len(NEST_COLUMNS), None) if nest is None else slice(len(NEST_COLUMNS))] = rows
    return wide
