"""Permutations of axes sink below elementwise operators, to their inverse."""

from __future__ import annotations

from functools import partial

import pytest
from tvm import relax, tirx

from autotune.tvm_backend.passes.permutations import sink_permutations
from autotune.tvm_backend.passes.rewrite import op_name

from .conftest import function, operators

_OP = relax.op
TO_FIRST = (0, 3, 1, 2)
TO_LAST = (0, 2, 3, 1)


@pytest.fixture
def sunk(rewritten):
    """The operators after sinking."""
    return partial(rewritten, sink_permutations)


def test_elementwise_operators_between_a_permutation_and_its_inverse_need_neither(sunk, const):
    def build(emit, x):
        first = emit(_OP.permute_dims(x, TO_FIRST))
        scaled = emit(_OP.multiply(emit(_OP.exp(first)), const(5, 1, 1)))
        return _OP.permute_dims(scaled, TO_LAST)

    assert sunk(build, (1, 3, 4, 5)) == ["exp", "multiply"]


def test_two_permutations_one_after_the_other_are_one(sunk):
    def build(emit, x):
        return _OP.permute_dims(emit(_OP.permute_dims(x, TO_FIRST)), TO_FIRST)

    assert sunk(build, (1, 3, 4, 5)) == ["permute_dims"]


def test_a_permutation_without_axes_reverses_them(sunk):
    def build(emit, x):
        return _OP.permute_dims(emit(_OP.exp(emit(_OP.permute_dims(x)))))

    assert sunk(build, (2, 3, 4)) == ["exp"]


def test_a_thousand_operators_between_a_permutation_and_its_inverse(sunk):
    def build(emit, x):
        moved = emit(_OP.permute_dims(x, TO_FIRST))
        for _ in range(1000):
            moved = emit(_OP.negative(moved))
        return _OP.permute_dims(moved, TO_LAST)

    assert set(sunk(build, (1, 3, 4, 5))) == {"negative"}


def test_a_permutation_of_axes_of_extent_1_is_a_reshape(sunk):
    def build(emit, x):
        return _OP.exp(emit(_OP.permute_dims(x, (1, 0, 2, 3))))

    assert sunk(build, (6, 1, 4, 1)) == ["reshape", "exp"]


def test_permutations_of_tensors_of_other_ranks_are_no_inverses(sunk):
    def build(emit, x, y):
        active = emit(_OP.exp(emit(_OP.permute_dims(x, (1, 0, 2)))))
        narrow = emit(_OP.permute_dims(emit(_OP.reshape(active, (3, 8))), (1, 0)))
        return _OP.add(emit(_OP.permute_dims(y, TO_LAST)), narrow)

    names = sunk(build, (2, 3, 4), (1, 3, 8, 1))
    assert names == ["permute_dims", "exp", "reshape", "permute_dims", "permute_dims", "add"]


def test_where_no_inverse_follows_nothing_changes(sunk):
    def build(emit, x):
        return _OP.exp(emit(_OP.permute_dims(x, TO_FIRST)))

    assert sunk(build, (1, 3, 4, 5)) == ["permute_dims", "exp"]


def test_what_is_added_is_permuted_once_for_all_additions(sunk):
    def build(emit, x, y):
        total = y
        for _ in range(3):
            last = emit(_OP.permute_dims(total, TO_LAST))
            branch = emit(_OP.permute_dims(emit(_OP.add(emit(_OP.nn.softmax(last)), x)), TO_FIRST))
            total = emit(_OP.add(branch, total))
        return _OP.permute_dims(total, TO_LAST)

    names = sunk(build, (1, 3, 4, 5), (1, 5, 3, 4))
    assert names.count("permute_dims") == 1
    assert names.count("add") == 6


def test_a_sum_that_keeps_its_dimensions_is_over_the_axes_before(sunk):
    def build(emit, x):
        first = emit(_OP.permute_dims(x, TO_FIRST))
        return _OP.permute_dims(emit(_OP.sum(first, [2, -1], keepdims=True)), TO_LAST)

    assert sunk(build, (2, 3, 4, 5)) == ["sum"]


@pytest.mark.parametrize(("ties", "after"), [(True, []), (False, ["permute_dims"])])
def test_where_as_many_operands_are_permuted_as_not_it_may_stay(rewritten, ties, after):
    def build(emit, x, y):
        return _OP.permute_dims(emit(_OP.add(emit(_OP.permute_dims(x, TO_FIRST)), y)), TO_LAST)

    rewrite = partial(sink_permutations, ties=ties)
    assert rewritten(rewrite, build, (1, 3, 4, 5), (1, 5, 3, 4)) == ["permute_dims", "add", *after]


def test_a_permutation_and_what_replaces_it_keep_their_names():
    def build(emit, x):
        turned = emit(_OP.permute_dims(x, (1, 0, 2)), "permute_dims_1")
        moved = emit(_OP.permute_dims(emit(_OP.nn.softmax(turned)), (2, 0, 1)), "permute_dims_2")
        return _OP.nn.softmax(moved)

    module = sink_permutations(function(build, (1, 3, 4)))
    names = {op_name(item.value): item.var.name for block in module["main"].body.blocks for item in block.bindings}
    assert names["relax.reshape"] == "permute_dims_1"
    assert names["relax.permute_dims"] == "permute_dims_2"


def test_what_is_read_in_both_layouts_is_computed_in_one(sunk):
    def build(emit, x):
        first = emit(_OP.exp(emit(_OP.permute_dims(x, TO_FIRST))))
        last = emit(_OP.permute_dims(first, TO_LAST))
        return _OP.add(emit(_OP.sum(first)), emit(_OP.sum(last)))

    assert sunk(build, (1, 3, 4, 5)) == ["exp", "permute_dims", "sum", "sum", "add"]


def test_an_operand_of_fewer_dimensions_keeps_the_permutation_before_it(sunk):
    def build(emit, x, y):
        first = emit(_OP.permute_dims(x, TO_FIRST))
        return _OP.permute_dims(emit(_OP.add(first, y)), TO_LAST)

    assert sunk(build, (1, 3, 4, 5), (3, 4)) == ["permute_dims", "add", "permute_dims"]


def test_bytes_are_permuted_rather_than_the_floats_that_they_stand_for(sunk):
    def build(emit, x):
        scale = relax.const(0.05, "float32")
        zero = relax.const(3, "uint8")
        first = emit(_OP.permute_dims(x, TO_FIRST))
        bytes_ = emit(_OP.quantize(first, scale, zero, axis=1, out_dtype="uint8"))
        back = emit(_OP.dequantize(bytes_, scale, zero, axis=1))
        last = emit(_OP.nn.softmax(emit(_OP.permute_dims(back, TO_LAST))))
        return _OP.add(emit(_OP.sum(last)), emit(_OP.nn.softmax(back)))

    names = sunk(build, (1, 3, 4, 5))
    assert names.index("quantize") < names.index("permute_dims")
    assert names[names.index("permute_dims") + 1] == "dequantize"


def test_a_permutation_of_open_sizes_stays():
    rows = relax.Var("rows", relax.TensorType((tirx.Var("n", "int64"), 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [rows]):
        with builder.dataflow():
            output = builder.emit_output(_OP.permute_dims(rows, (1, 0)))
        builder.emit_func_output(output)
    assert operators(sink_permutations(builder.get())) == ["permute_dims"]
