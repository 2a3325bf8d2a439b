"""Permutations of axes sink below elementwise operators, to their inverse."""

from __future__ import annotations

from functools import partial

import pytest
from tvm import relax, tirx

from autotune.tvm_backend.expressions import op_name
from autotune.tvm_backend.graph.permutations import sink_permutations

from ..relax_functions import function, operators

_OP = relax.op
TO_FIRST = (0, 3, 1, 2)
TO_LAST = (0, 2, 3, 1)
IMAGE = (1, 3, 4, 5)


def permuted(emit, x, axes=TO_FIRST):
    return emit(_OP.permute_dims(x, axes))


def read_in_both_layouts(emit, x):
    first = emit(_OP.exp(permuted(emit, x)))
    return _OP.add(emit(_OP.sum(first)), emit(_OP.sum(permuted(emit, first, TO_LAST))))


def with_permutations_of_other_ranks(emit, x, y):
    active = emit(_OP.exp(permuted(emit, x, (1, 0, 2))))
    narrow = permuted(emit, emit(_OP.reshape(active, (3, 8))), (1, 0))
    return _OP.add(permuted(emit, y, TO_LAST), narrow)


# What is computed, the shapes of its inputs, and the operators that are left.
NETWORKS = {
    "two permutations one after the other are one": (
        lambda emit, x: permuted(emit, permuted(emit, x)),
        [IMAGE],
        ["permute_dims"],
    ),
    "without axes all are reversed": (
        lambda emit, x: permuted(emit, emit(_OP.exp(permuted(emit, x, None))), None),
        [(2, 3, 4)],
        ["exp"],
    ),
    "one of axes of extent 1 is a reshape": (
        lambda emit, x: _OP.exp(permuted(emit, x, (1, 0, 2, 3))),
        [(6, 1, 4, 1)],
        ["reshape", "exp"],
    ),
    "where no inverse follows nothing changes": (
        lambda emit, x: _OP.exp(permuted(emit, x)),
        [IMAGE],
        ["permute_dims", "exp"],
    ),
    "those of tensors of other ranks are no inverses": (
        with_permutations_of_other_ranks,
        [(2, 3, 4), (1, 3, 8, 1)],
        ["permute_dims", "exp", "reshape", "permute_dims", "permute_dims", "add"],
    ),
    "a sum that keeps its dimensions is over the axes before": (
        lambda emit, x: permuted(emit, emit(_OP.sum(permuted(emit, x), [2, -1], keepdims=True)), TO_LAST),
        [(2, 3, 4, 5)],
        ["sum"],
    ),
    "what is read in both layouts is computed in one": (
        read_in_both_layouts,
        [IMAGE],
        ["exp", "permute_dims", "sum", "sum", "add"],
    ),
    "an operand of fewer dimensions keeps the permutation before it": (
        lambda emit, x, y: permuted(emit, emit(_OP.add(permuted(emit, x), y)), TO_LAST),
        [IMAGE, (3, 4)],
        ["permute_dims", "add", "permute_dims"],
    ),
}


@pytest.fixture
def sunk(rewritten):
    """The operators after sinking."""
    return partial(rewritten, sink_permutations)


@pytest.mark.parametrize("name", NETWORKS)
def test_permutations_sink(sunk, name):
    build, shapes, left = NETWORKS[name]
    assert sunk(build, *shapes) == left


def test_elementwise_operators_between_a_permutation_and_its_inverse_need_neither(sunk, const):
    def build(emit, x):
        scaled = emit(_OP.multiply(emit(_OP.exp(permuted(emit, x))), const(5, 1, 1)))
        return permuted(emit, scaled, TO_LAST)

    assert sunk(build, IMAGE) == ["exp", "multiply"]


def test_a_thousand_operators_between_a_permutation_and_its_inverse():
    def build(emit, x):
        moved = permuted(emit, x)
        for _ in range(1000):
            moved = emit(_OP.negative(moved))
        return permuted(emit, moved, TO_LAST)

    assert operators(sink_permutations(function(build, IMAGE))) == ["negative"] * 1000


def test_what_is_added_is_permuted_once_for_all_additions(sunk):
    def build(emit, x, y):
        total = y
        for _ in range(3):
            last = permuted(emit, total, TO_LAST)
            branch = permuted(emit, emit(_OP.add(emit(_OP.nn.softmax(last)), x)))
            total = emit(_OP.add(branch, total))
        return permuted(emit, total, TO_LAST)

    names = sunk(build, IMAGE, (1, 5, 3, 4))
    assert names.count("permute_dims") == 1
    assert names.count("add") == 6


@pytest.mark.parametrize(("ties", "after"), [(True, []), (False, ["permute_dims"])])
def test_where_as_many_operands_are_permuted_as_not_it_may_stay(rewritten, ties, after):
    def build(emit, x, y):
        return permuted(emit, emit(_OP.add(permuted(emit, x), y)), TO_LAST)

    rewrite = partial(sink_permutations, ties=ties)
    assert rewritten(rewrite, build, IMAGE, (1, 5, 3, 4)) == ["permute_dims", "add", *after]


def test_a_permutation_and_what_replaces_it_keep_their_names():
    def build(emit, x):
        turned = emit(_OP.permute_dims(x, (1, 0, 2)), "permute_dims_1")
        moved = emit(_OP.permute_dims(emit(_OP.nn.softmax(turned)), (2, 0, 1)), "permute_dims_2")
        return _OP.nn.softmax(moved)

    module = sink_permutations(function(build, (1, 3, 4)))
    names = {op_name(item.value): item.var.name for block in module["main"].body.blocks for item in block.bindings}
    assert names["relax.reshape"] == "permute_dims_1"
    assert names["relax.permute_dims"] == "permute_dims_2"


def test_bytes_are_permuted_rather_than_the_floats_that_they_stand_for(sunk):
    def build(emit, x):
        quantity = (relax.const(0.05, "float32"), relax.const(3, "uint8"))
        bytes_ = emit(_OP.quantize(permuted(emit, x), *quantity, axis=1, out_dtype="uint8"))
        back = emit(_OP.dequantize(bytes_, *quantity, axis=1))
        last = emit(_OP.nn.softmax(permuted(emit, back, TO_LAST)))
        return _OP.add(emit(_OP.sum(last)), emit(_OP.nn.softmax(back)))

    names = sunk(build, IMAGE)
    assert names.index("quantize") < names.index("permute_dims")
    assert names[names.index("permute_dims") + 1] == "dequantize"


def test_a_permutation_of_open_sizes_stays():
    rows = function(lambda _, x: _OP.permute_dims(x, (1, 0)), (tirx.Var("n", "int64"), 3))
    assert operators(sink_permutations(rows)) == ["permute_dims"]
