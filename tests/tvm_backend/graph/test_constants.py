"""What follows from constants alone is computed once, as TVM's own pass does it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from autotune.tvm_backend.graph.constants import drop_empty_parts, fold_constants

_OP = relax.op


def scaled(emit, x, const):
    """A product whose weights are made in two steps."""
    weight = emit(_OP.permute_dims(emit(_OP.multiply(const(8, 4), const(4)))))
    return _OP.add(emit(_OP.matmul(x, weight)), const(8))


def split(emit, x, const):
    """A weight that is cut, and a part that is changed."""
    parts = emit(_OP.split(emit(_OP.negative(const(4, 8))), 2, axis=1))
    return emit(_OP.matmul(x, emit(_OP.exp(emit(relax.TupleGetItem(parts, 1))))))


def normalised(emit, x, const):
    """Batch normalisation: NumPy computes the scale."""
    root = emit(_OP.sqrt(emit(_OP.add(emit(_OP.multiply(const(8), const(8))), relax.const(1e-5, "float32")))))
    scale = emit(_OP.expand_dims(emit(_OP.divide(const(8), root)), [0]))
    return _OP.multiply(emit(_OP.matmul(x, const(4, 8))), emit(_OP.subtract(scale, const(8))))


def bounded(emit, x, const):
    """A bound that counts only where it is a number."""
    bound = relax.const(0.5, "float32")
    return _OP.minimum(x, emit(_OP.where(emit(_OP.isnan(bound)), const(), bound)))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (scaled, ["matmul", "add"]),
        (split, ["exp", "matmul"]),
        (normalised, ["matmul", "multiply"]),
        (bounded, ["minimum"]),
    ],
)
def test_folding_leaves_what_the_pass_of_tvm_leaves(rewritten, const, build, left):
    made = []

    def fold(module):
        made.append((fold_constants(module), relax.transform.FoldConstant()(module)))
        return made[0][0]

    assert rewritten(fold, lambda emit, x: build(emit, x, const), (2, 4)) == left
    clean = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])
    ours, theirs = map(clean, made[0])
    assert tvm_ffi.structural_equal(ours["main"], theirs["main"])


def test_a_function_without_them_stays_as_it_is(rewritten):
    same = []

    def fold(module):
        same.append(fold_constants(module) is module)
        return module

    assert rewritten(fold, lambda emit, x: _OP.negative(x), (2, 4)) == ["negative"] and same == [True]


EMPTY = relax.const(np.zeros((1, 0), np.float32))


def with_empty(emit, x, _):
    return _OP.exp(emit(_OP.concat([x, EMPTY], axis=1)))


def with_empty_and_another(emit, x, const):
    return _OP.exp(emit(_OP.concat([x, EMPTY, const(1, 4)], axis=1)))


def with_computed_one(emit, x, _):
    return _OP.exp(emit(_OP.concat([x, emit(_OP.strided_slice(x, [1], [0], [0]))], axis=1)))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (with_empty, ["exp"]),
        (with_empty_and_another, ["concat", "exp"]),
        (with_computed_one, ["exp"]),
        (lambda _, x, const: _OP.concat([x, const(1, 1)], axis=1), ["concat"]),
    ],
)
def test_parts_without_elements_are_left_out_of_concatenations(rewritten, const, build, left):
    assert rewritten(drop_empty_parts, lambda emit, x: build(emit, x, const), (1, 3)) == left
