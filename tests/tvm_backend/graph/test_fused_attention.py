"""Attention in fp16 and bf16 on a GPU is one kernel, where nothing else reads a part of it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, op_name
from autotune.tvm_backend.graph.fused_attention import fuse_attention
from autotune.tvm_backend.graph.gpu_precision import bfloat16, half_precision
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.target import resolve_target, tvm_target

BATCH, HEADS, ROWS, SIZE = 2, 4, 24, 32
IN_HALVES = {"fp16": half_precision, "bf16": bfloat16}


def gpu(arch="sm_80"):
    load_tvm("cuda")
    return tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{arch}"}}', 1).description)


def attention(
    scale=None,
    mask=None,
    *,
    axis=-1,
    mask_first=False,
    read_twice=False,
    keys_turned=False,
    operands=(None, None),
    guarded=False,
    chosen=None,
):
    """A module of attention as exporters write it."""
    builder = relax.BlockBuilder()
    wide = relax.TensorType((BATCH, ROWS, HEADS, SIZE), "float32")
    q, k, v = (relax.Var(name, wide) for name in "qkv")
    if keys_turned:
        k = relax.Var("k", relax.TensorType((BATCH, HEADS, ROWS, SIZE), "float32"))
    masks = [relax.Var("mask", relax.TensorType(mask, "float32"))] if mask else []
    with builder.function("main", [q, k, v, *masks]):
        with builder.dataflow():
            by_heads = builder.emit(relax.op.permute_dims(q, (0, 2, 1, 3)))
            keys = builder.emit(relax.op.permute_dims(k, (0, 1, 3, 2) if keys_turned else (0, 2, 3, 1)))
            both = [builder.emit(item(x)) if item else x for item, x in zip(operands, (by_heads, keys), strict=True)]
            scores = builder.emit(relax.op.matmul(*both))
            if scale:
                scores = builder.emit(scale(scores))
            if chosen:
                keys, number, is_first = chosen
                operands_of = [scores, relax.const(np.float32(number), "float32")][:: -1 if is_first else 1]
                scores = builder.emit(relax.op.where(relax.const(keys), *operands_of))
            if masks:
                operands = (masks[0], scores) if mask_first else (scores, masks[0])
                scores = builder.emit(relax.op.add(*operands))
            weights = builder.emit(relax.op.nn.softmax(scores, axis=axis))
            if guarded:
                is_none = builder.emit(relax.op.isnan(weights))
                weights = builder.emit(relax.op.where(is_none, relax.const(np.float32(0), "float32"), weights))
            values = builder.emit(relax.op.permute_dims(v, (0, 2, 1, 3)))
            result = builder.emit(relax.op.matmul(weights, values))
            rows = builder.emit(relax.op.permute_dims(result, (0, 2, 1, 3)))
            outputs = [builder.emit_output(item) for item in (rows, *([weights] if read_twice else []))]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def fused(module, precision="fp16", arch="sm_80"):
    """The operators that are left, and the code of the kernel."""
    module = fuse_attention(IN_HALVES[precision](module), gpu(arch))
    names = [op_name(item.value) for item in bindings_of(module["main"])]
    code = [str(item) for item in module.functions.values() if isinstance(item, tvm.tirx.PrimFunc)]
    return names, "".join(code)


def multiplied(scores):
    return relax.op.multiply(scores, relax.const(np.float32(0.17), "float32"))


def divided(scores):
    return relax.op.divide(scores, relax.const(np.float32(4.0), "float32"))


@pytest.mark.parametrize("precision", IN_HALVES)
def test_attention_is_one_kernel_without_permutations(precision):
    names, code = fused(attention(multiplied), precision)
    assert names.count("relax.call_tir") == 1
    assert not {"relax.matmul", "relax.nn.softmax", "relax.permute_dims"} & set(names)
    assert {"fp16": "Fp16", "bf16": "Bf16"}[precision] in code
    assert "0.17000" in code, "the factor is not rounded"


@pytest.mark.parametrize(("scale", "factor"), [(None, "1.0f"), (divided, "0.25f"), (multiplied, "0.17000")])
def test_scores_are_multiplied_by_a_number_or_not(scale, factor):
    assert f", {{}}, {factor}" in fused(attention(scale))[1]


@pytest.mark.parametrize("mask_first", [False, True])
@pytest.mark.parametrize(
    ("mask", "strides"),
    [
        ((BATCH, 1, 1, ROWS), f"{ROWS}, 0, 0, 1"),
        ((ROWS, ROWS), f"0, 0, {ROWS}, 1"),
        ((1, HEADS, ROWS, 1), f"0, {ROWS}, 1, 0"),
    ],
)
def test_a_mask_is_read_in_float32_as_it_is_broadcast(mask, strides, mask_first):
    names, code = fused(attention(divided, mask, mask_first=mask_first))
    assert f"Added<{strides}>" in code
    assert names.count("relax.call_tir") == 1 and "relax.nn.softmax" not in names
    assert names.count("relax.astype") == 4, "three operands, and the result: the mask stays as it is"


CAUSAL = np.tril(np.ones((1, 1, ROWS, ROWS), bool))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("mask", [None, (BATCH, 1, 1, ROWS)])
def test_scores_that_a_constant_chooses_are_masked(mask, is_first):
    names, code = fused(attention(divided, mask, chosen=(CAUSAL ^ is_first, -1e4 if mask is None else -3e38, is_first)))
    assert "relax.where" not in names and "relax.nn.softmax" not in names
    strides = f"0, 0, {ROWS}, 1" if mask is None else f"{ROWS * ROWS}, 0, {ROWS}, 1"
    assert f"Added<{strides}>" in code, "both masks are added, if there are two"


def test_beside_another_mask_a_number_must_absorb_scores():
    names, _ = fused(attention(divided, (BATCH, 1, 1, ROWS), chosen=(CAUSAL, -1e4, False)))
    assert "relax.where" in names and "relax.nn.softmax" in names, "all keys of a query may have it"


@pytest.mark.parametrize("chosen", [(CAUSAL, -10.0, False), (CAUSAL & False, -1e4, False), (CAUSAL | True, -1e4, True)])
def test_scores_that_may_weigh_something_are_no_mask(chosen):
    names, _ = fused(attention(divided, chosen=chosen))
    assert "relax.where" in names and "relax.nn.softmax" in names


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"read_twice": True}, id="weights that are a result"),
        pytest.param({"axis": 2}, id="a softmax over queries"),
        pytest.param({"scale": lambda x: relax.op.astype(relax.op.astype(x, "int32"), "float32")}, id="whole numbers"),
        pytest.param({"mask": (BATCH, HEADS, ROWS, ROWS, 1)[:4], "scale": lambda x: relax.op.add(x, x)}, id="a sum"),
        pytest.param({"scale": lambda x: relax.op.divide(x, relax.const(np.float32(0), "float32"))}, id="nothing"),
    ],
)
def test_what_is_no_attention_stays_as_it_is(other):
    names, _ = fused(attention(**other))
    assert names.count("relax.matmul") == 2 and "relax.call_tir" not in names


def test_gpus_before_ampere_have_no_such_kernel():
    names, _ = fused(attention(divided), arch="sm_75")
    assert names.count("relax.matmul") == 2


def test_keys_that_lie_otherwise_are_permuted_first():
    names, _ = fused(attention(divided, keys_turned=True))
    assert names.count("relax.permute_dims") == 2, "as the network does, and as the kernel reads them: they are fused"


def test_numbers_that_operands_are_multiplied_by_go_to_the_scores():
    names, code = fused(attention(divided, operands=(multiplied, divided)))
    assert "relax.multiply" not in names and "relax.divide" not in names
    assert f", {{}}, {0.17 / 4 / 4:.6f}" in code


@pytest.mark.parametrize(("guarded", "zeros"), [(True, "true"), (False, "false")])
def test_weights_that_are_no_numbers_may_be_zeros(guarded, zeros):
    names, code = fused(attention(divided, (1, 1, 1, ROWS), guarded=guarded))
    assert "relax.where" not in names and f", {zeros}>::run(" in code


def test_operands_are_read_where_they_lie_in_the_rows_of_one_product():
    width = HEADS * SIZE
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH, ROWS, 3 * width), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            wide = builder.emit(relax.op.matmul(x, relax.const(np.ones((3 * width, 3 * width), np.float32))))
            parts = [
                builder.emit(relax.op.strided_slice(wide, axes=[2], begin=[begin], end=[begin + width]))
                for begin in range(0, 3 * width, width)
            ]
            q, k, v = (builder.emit(relax.op.reshape(item, (BATCH, ROWS, HEADS, SIZE))) for item in parts)
            keys = builder.emit(relax.op.permute_dims(k, (0, 2, 3, 1)))
            by_heads, values = (builder.emit(relax.op.permute_dims(item, (0, 2, 1, 3))) for item in (q, v))
            scores = builder.emit(relax.op.matmul(by_heads, keys))
            weights = builder.emit(relax.op.nn.softmax(scores))
            result = builder.emit(relax.op.matmul(weights, values))
            rows = builder.emit_output(relax.op.permute_dims(result, (0, 2, 1, 3)))
        builder.emit_func_output(rows)
    names, code = fused(builder.get())
    assert [f"Part<{3 * width}, {begin}>" in code for begin in (0, width, 2 * width)] == [True] * 3
    assert "relax.strided_slice" not in names
