"""The prior knows good loop nests before anything is measured; searches and cost models start from it."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.search.cost_model import CostModel, prior
from autotune.tvm_backend.search.features import WIDTH


@pytest.fixture(scope="module")
def score(target, matmul_of):
    return scorer(target, matmul_of(256))


@pytest.fixture(scope="module")
def wide_score(wide_target, matmul_of):
    return scorer(wide_target, matmul_of(256))


def scorer(target, module):
    """Of tiles of i, j and k of a matrix product of 256 by 256, on the first sketch, unrolled up to 512 steps."""
    from autotune.tvm_backend.search.design_space import design_space, plain_trace
    from autotune.tvm_backend.search.features import widen
    from autotune.tvm_backend.search.nest import NestFeatures

    nests = NestFeatures(module, target)
    model = prior("llvm")
    sketch = nests.sketch(plain_trace(design_space(module, target)[0].trace)[0])
    assert model is not None and sketch is not None

    def scored(*tiles):
        rows = nests.rows(sketch, [*(np.array([tile], float) for tile in tiles), np.array([3.0])])
        return float(model.score_rows(widen(nest=rows))[0])

    return scored


BLOCKED = ([8, 1, 8, 4], [2, 8, 1, 16], [64, 4])


def test_vectors_are_better_than_none(score):
    assert score(*BLOCKED) > 2 * score([8, 1, 8, 4], [32, 8, 1, 1], [64, 4])


def test_two_cores_are_better_than_one(score):
    assert score(*BLOCKED) > score([1, 1, 64, 4], [1, 1, 16, 16], [64, 4])


def test_a_block_that_fits_the_registers_is_better_than_one_that_does_not(score):
    assert score(*BLOCKED) > 1.2 * score([4, 1, 1, 64], [2, 2, 1, 64], [64, 4])


def test_wider_vectors_need_more_rows_for_as_many_independent_sums(score, wide_score):
    few = ([16, 1, 8, 2], [2, 8, 1, 16], [64, 4])
    many = ([4, 1, 8, 8], [2, 8, 1, 16], [64, 4])
    gain = {name: judge(*many) / judge(*few) for name, judge in (("narrow", score), ("wide", wide_score))}
    assert gain["wide"] > 1.1 * gain["narrow"]


def test_a_kind_without_one_has_none():
    assert prior("hexagon") is None


def test_a_model_that_starts_from_the_prior_says_the_same_until_trials_tell_otherwise():
    rows = [np.random.default_rng(at).random((2, WIDTH), dtype=np.float32) for at in range(40)]
    start = CostModel.train(rows, list(np.linspace(0.1, 1.0, 40)))
    same = CostModel.train(rows, start.score(rows), start)
    other = CostModel.train(rows, list(np.linspace(1.0, 0.1, 40)), start)
    np.testing.assert_allclose(same.score(rows), start.score(rows), atol=1e-3)
    assert np.corrcoef(other.score(rows), start.score(rows))[0, 1] < 0
