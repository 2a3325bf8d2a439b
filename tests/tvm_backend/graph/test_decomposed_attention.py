"""Attention as `torch.export` decomposes it gets the form that other exporters write, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, op_name, static_shape
from autotune.tvm_backend.graph.decomposed_attention import compose_attention

BATCH, HEADS, ROWS, SIZE = 2, 3, 4, 8
MASK = np.zeros((BATCH, 1, ROWS, ROWS), np.float32)
MASK[0, :, 1] = -np.inf  # a query without keys
MASK[1, :, :, 2:] = -np.inf


def decomposed(*, other_scores=False, axis=-1, of_softmax=-1, read_twice=False, value=0.0):
    """A module of attention with a mask, as PyTorch has it."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    tensor = relax.TensorType((BATCH, HEADS, ROWS, SIZE), "float32")
    q, k, v = (relax.Var(name, tensor) for name in "qkv")
    mask = relax.Var("mask", relax.TensorType(MASK.shape, "float32"))

    def product(left, right):
        operands = []
        for item in (left, right):
            shape = [int(size) for size in item.ty.shape.values]
            same = emit(relax.op.broadcast_to(item, shape))
            operands.append(emit(relax.op.reshape(same, (BATCH * HEADS, *shape[2:]))))
        result = emit(relax.op.matmul(*operands))
        shape = [int(size) for size in result.ty.shape.values]
        return emit(relax.op.reshape(result, (BATCH, HEADS, *shape[1:]))), result

    with builder.function("main", [q, k, v, mask]):
        with builder.dataflow():
            scores, folded = product(q, emit(relax.op.permute_dims(k, (0, 1, 3, 2))))
            scores = emit(relax.op.add(scores, mask))
            softmax = emit(relax.op.nn.softmax(scores, axis=of_softmax))
            asked = emit(relax.op.negative(scores)) if other_scores else scores
            masked = emit(relax.op.equal(asked, relax.const(np.float32(-np.inf), "float32")))
            kept = emit(relax.op.astype(emit(relax.op.logical_not(masked)), "int8"))
            any_kept = emit(relax.op.astype(emit(relax.op.max(kept, axis=[axis], keepdims=True)), "bool"))
            zeros = emit(relax.op.full_like(softmax, relax.const(np.float32(value), "float32")))
            weights = emit(relax.op.where(emit(relax.op.logical_not(any_kept)), zeros, softmax))
            result, _ = product(weights, v)
            outputs = [builder.emit_output(item) for item in (result, *([folded] if read_twice else []))]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def run(module):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(BATCH, HEADS, ROWS, SIZE)).astype("float32") for _ in range(3)]
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, (*arrays, MASK)))[0].numpy()


def operators(module):
    return [op_name(item.value) for item in bindings_of(module["main"])]


def test_products_have_four_axes_and_queries_without_keys_have_zeros():
    module = decomposed()
    composed = compose_attention(module)
    products = [item.value for item in bindings_of(composed["main"]) if op_name(item.value) == "relax.matmul"]
    assert [len(static_shape(item)) for item in products] == [4, 4]
    assert "relax.isnan" in operators(composed)
    assert not {"relax.broadcast_to", "relax.reshape", "relax.equal", "relax.max"} & set(operators(composed))
    results = [run(item) for item in (module, composed)]
    assert np.allclose(*results, rtol=1e-5, atol=1e-6)
    assert (results[1][0, :, 1] == 0).all()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"other_scores": True}, id="of other scores"),
        pytest.param({"axis": 2}, id="of queries"),
        pytest.param({"of_softmax": 2}, id="before a softmax over queries"),
        pytest.param({"value": 1.0}, id="ones"),
    ],
)
def test_another_condition_stays_as_it_is(other):
    composed = compose_attention(decomposed(**other))
    assert "relax.isnan" not in operators(composed) and "relax.equal" in operators(composed)


def test_a_product_that_is_read_again_keeps_its_axes():
    composed = compose_attention(decomposed(read_twice=True))
    products = [item.value for item in bindings_of(composed["main"]) if op_name(item.value) == "relax.matmul"]
    assert [len(static_shape(item)) for item in products] == [3, 4]
    assert operators(composed).count("relax.broadcast_to") == 0


def test_what_is_really_broadcast_stays_so():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.broadcast_to(x, (4, 8)))
        builder.emit_func_output(output)
    assert operators(compose_attention(builder.get())) == ["relax.broadcast_to"]


def test_a_guard_of_fp16_stays_as_it_is():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            softmax = builder.emit(relax.op.nn.softmax(x))
            masked = builder.emit(relax.op.equal(x, relax.const(np.float16(-np.inf), "float16")))
            kept = builder.emit(relax.op.astype(builder.emit(relax.op.logical_not(masked)), "int8"))
            some = builder.emit(relax.op.max(kept, axis=[-1], keepdims=True))
            none = builder.emit(relax.op.logical_not(builder.emit(relax.op.astype(some, "bool"))))
            output = builder.emit_output(relax.op.where(none, relax.const(np.float16(0), "float16"), softmax))
        builder.emit_func_output(output)
    assert "relax.isnan" not in operators(compose_attention(builder.get()))
