"""The columns of the features have names, and the names are those of what is in them."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.search import nest
from autotune.tvm_backend.search.cost_model import CostModel, prior
from autotune.tvm_backend.search.features import COLUMNS, STORE_COLUMNS, WIDTH, FeatureExtractor
from autotune.tvm_backend.search.knobs import Knobs


def test_every_column_has_a_name_of_its_own():
    assert len(set(COLUMNS)) == len(COLUMNS) == WIDTH


def test_the_prior_was_trained_on_as_many_columns(tmp_path):
    model = prior("llvm")
    assert model is not None
    (tmp_path / "model").write_bytes(model.serialise())
    assert CostModel.load(tmp_path / "model", WIDTH) is not None


def test_tvm_has_as_many_features_of_a_store(target):
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    assert PerStoreFeature().feature_vector_length == len(STORE_COLUMNS)


def test_the_features_of_a_store_are_under_their_names(target, as_program):
    """A sum of 49 numbers, 16 times, not scheduled: a reads 784 elements of 4 bytes, TVM's logarithms are of x + 1."""
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import MeasureCandidate

    a = te.placeholder((16, 49), name="a")
    k = te.reduce_axis((0, 49), "k")
    program = as_program(a, te.compute((16,), lambda i: te.sum(a[i, k], k), name="c"))
    (rows,) = FeatureExtractor(program, target).of_candidates([MeasureCandidate(Schedule(program), [])])
    named = dict(zip(COLUMNS, rows[-1].tolist(), strict=True))
    steps = np.log2(16 * 49 + 1)
    expected = {"iterations": steps, "loops": np.log2(3), "float_add_sub": steps, "unroll_limit": 0.0, "is_gpu": 0.0}
    expected |= {"vectorized_at_none": 1.0, "buffer0_read": 1.0, "buffer0_bytes": np.log2(16 * 49 * 4 + 1)}
    assert {name: named[f"store_{name}"] for name in expected} == pytest.approx(expected)


def test_the_features_of_a_nest_are_under_their_names(target, matmul_of):
    """Tiles of i, j and k of a product of 64 by 64, with unrolling up to 16 statements."""
    knobs = Knobs(matmul_of(64), target)
    nests = nest.NestFeatures(knobs.program, target)
    instructions, _ = knobs.sketches()[0]
    sketch = nests.sketch(instructions)
    assert sketch is not None
    decisions = ([1, 2, 8, 4], [2, 1, 2, 16], [32, 2])
    (row,) = nests.rows(sketch, [*(np.array([tile], float) for tile in decisions), np.array([1.0])])
    named = dict(zip(nest.COLUMNS, row.tolist(), strict=True))
    expected = {
        **{"level0_extent": 4 * 16, "level1_extent": 2, "level2_extent": 8 * 2, "level1_iterations": 4 * 16 * 2},
        **{"loop0_part0": 16, "loop0_part3": 2, "loop1_part0": 4, "loop1_part1": 8, "inner_rows": 4},
        **{"unroll_limit": 16, "unroll_limit_over_body0": 16 / 4, "spatial_iterations": 64**2},
        **{"inner_tile": 64, "last_inner_reduction": 2, "outer_tile": 2, "reduction_iterations": 64},
    }
    assert {name: 2 ** named[name] for name in expected} == pytest.approx(expected)
    assert named["loops"] == 3 and np.isnan(named["level7_extent"])
