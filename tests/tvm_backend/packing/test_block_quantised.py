"""Matrices of few bits stay packed, and products with them are those of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.tasks import extract_tasks

from ..quantised_nets import Network, computed, outcome

_ROUNDED = 2e-6  # of the largest value: floats in another order
_RNG = np.random.default_rng(0)


def constant_bytes(prepared) -> int:
    """The size of the constants of a prepared model."""
    values = [binding.value for block in prepared["main"].body.blocks for binding in block.bindings]
    fields = [item for value in values for item in getattr(value, "args", ()) if hasattr(item, "fields")]
    return sum(item.value.numpy().nbytes for field in fields for item in field.fields if hasattr(item, "value"))


def scales(*shape):
    return _RNG.uniform(0.01, 0.02, shape).astype(np.float32)


def n_bits(rows, inner, columns, *, bits, block, points=False) -> Network:
    net = Network((rows, inner))
    blocks = -(-inner // block)
    packed = _RNG.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    operands = [packed, scales(columns * blocks)]
    if points:
        operands.append(_RNG.integers(0, 256, (columns * -(-blocks * bits // 8),)).astype(np.uint8))
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    net.add("MatMulNBits", "input", *map(net.constant, operands), domain="com.microsoft", **attributes)
    return net


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "bits", "points"),
    [(1, 64, 48, 4, False), (13, 72, 20, 4, True), (3, 40, 16, 8, True), (3, 40, 16, 8, False)],
)
def test_a_product_with_blocks_of_bits(written, here, rows, inner, columns, bits, points):
    path = written(n_bits(rows, inner, columns, bits=bits, block=16, points=points))
    assert outcome(path, here).error < _ROUNDED


def test_half_bytes_stay_half_bytes(written, here):
    result = outcome(written(n_bits(1, 256, 64, bits=4, block=32)), here)
    assert result.error < _ROUNDED
    assert 256 * 64 // 2 <= constant_bytes(result.prepared) <= 256 * 64 // 2 * 1.3 + 4 * 64 * 8


@pytest.mark.parametrize(("bits", "block", "points"), [(4, 32, False), (4, 128, True), (8, 32, False)])
def test_activations_in_bytes_are_near_and_the_product_is_a_task(written, cpu, bits, block, points):
    path = written(n_bits(3, 256, 64, bits=bits, block=block, points=points))
    model = read_model(path, {})
    prepared = prepare(model.module, cpu, activations="int8")
    (task,) = (task for task in extract_tasks(prepared, cpu) if task.spec.tunable)
    assert task.spec.name == "packed_product"
    x = _RNG.standard_normal((3, 256)).astype(np.float32)
    result = computed(prepared, [task.program], cpu, x)
    (right,) = onnx_session(path, 1).run(None, {"input": x})
    assert 1e-6 < np.abs(result - right).max() / np.abs(right).max() < 0.03


@pytest.mark.parametrize(
    ("dtype", "least", "most", "axis"),
    [(TensorProto.INT8, -128, 128, 0), (TensorProto.INT4, -8, 8, 0), (TensorProto.INT4, -8, 8, 1)],
)
def test_a_matrix_that_is_dequantised_in_blocks(written, here, dtype, least, most, axis):
    net = Network((5, 32), opset=21)
    shape = (32, 24) if axis == 0 else (32, 48)
    weight = net.constant_of(dtype, _RNG.integers(least, most, shape))
    blocks = (2, 24) if axis == 0 else (32, 3)
    wide = net.add("DequantizeLinear", weight, net.constant(scales(*blocks)), axis=axis, block_size=16)
    net.add("MatMul", "input", wide)
    assert outcome(written(net), here).error < _ROUNDED


def test_a_matrix_with_a_scale_for_each_column_stays_bytes(written, here):
    net = Network((5, 64))
    weight = net.constant(_RNG.integers(-128, 128, (64, 32)).astype(np.int8))
    net.add("MatMul", "input", net.add("DequantizeLinear", weight, net.constant(scales(32)), axis=1))
    result = outcome(written(net), here)
    assert result.error < _ROUNDED
    assert 64 * 32 <= constant_bytes(result.prepared) < 64 * 32 * 1.3


@pytest.mark.parametrize(
    ("dtype", "least", "most", "zero"),
    [("int16", -30000, 30000, 0), ("uint16", 0, 65536, 30000), ("int32", -30000, 30000, 0)],
)
def test_weights_of_more_than_a_byte_are_no_bytes(written, here, dtype, least, most, zero):
    net = Network((5, 64), opset=21)
    net.matmul_of(net.rng.integers(least, most, (64, 32)).astype(dtype), 1e-5, zero)
    assert outcome(written(net), here).error < 1e-4


@pytest.mark.parametrize(("axis", "first", "last"), [(1, 8, 24), (1, 0, 16), (0, 16, 32), (0, 24, 48)])
def test_a_part_of_weights_that_have_scales_in_blocks(written, here, axis, first, last):
    net = Network((5, last - first if axis else 32), opset=21)
    weight = net.constant(net.rng.integers(-128, 128, (48, 32)).astype(np.int8))
    scale = net.constant(net.rng.uniform(0.01, 0.02, (48, 2)).astype(np.float32))
    wide = net.add("DequantizeLinear", weight, scale, axis=1, block_size=16)
    part = net.add("Slice", wide, *(net.constant(np.array([number])) for number in (first, last, axis)))
    net.add("MatMul", "input", net.add("Transpose", part, perm=[1, 0]))
    assert outcome(written(net), here).error < 1e-4
