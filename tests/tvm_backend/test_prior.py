"""The prior knows good loop nests before anything is measured; searches and cost models start from it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.cost_model import FEATURES, CostModel
from autotune.tvm_backend.prior import prior


@pytest.fixture(scope="module")
def scored():
    """Scores of three schedules of a matrix product: as written, in parallel, and in parallel with vectors."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import MeasureCandidate
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    from autotune.tvm_backend.cost_model import extract_features
    from autotune.tvm_backend.space import tune_context

    size = 256
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size), "k")
    product = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, product]).with_attr("global_symbol", "main")})

    def candidate(change):
        schedule = Schedule(module)
        change(schedule, *schedule.get_loops(schedule.get_sblock("c")))
        return MeasureCandidate(schedule, ArgInfo.from_entry_func(schedule.mod, remove_preproc=True))

    def in_parallel(schedule, i, j, k):
        schedule.parallel(i)

    def with_vectors(schedule, i, j, k):
        outer, inner = schedule.split(j, [None, 16])
        schedule.reorder(i, outer, k, inner)
        schedule.parallel(i)
        schedule.vectorize(inner)

    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    candidates = [candidate(change) for change in (lambda *_: None, in_parallel, with_vectors)]
    model = prior("llvm")
    assert model is not None
    return model.score(extract_features(tune_context(module, target), candidates))


def test_vectors_are_better_than_none(scored):
    as_written, in_parallel, with_vectors = scored
    assert with_vectors > max(as_written, in_parallel)


def test_a_kind_without_one_has_none():
    assert prior("hexagon") is None


def test_a_model_that_starts_from_it_says_the_same_until_trials_tell_otherwise():
    rows = [np.random.default_rng(at).random((2, FEATURES), dtype=np.float32) for at in range(40)]
    start = CostModel.train(rows, list(np.linspace(0.1, 1.0, 40)))
    same = CostModel.train(rows, start.score(rows), start)
    other = CostModel.train(rows, list(np.linspace(1.0, 0.1, 40)), start)
    np.testing.assert_allclose(same.score(rows), start.score(rows), atol=1e-3)
    assert np.corrcoef(other.score(rows), start.score(rows))[0, 1] < 0
