"""Networks that are compiled for AArch64 compute there what ONNX Runtime does here; an emulator runs them.

`qemu-aarch64 -cpu max` has all the instructions that are asked for. It says nothing of how fast they are.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from autotune.tvm_backend.isa.aarch64 import MatrixProduct
from autotune.tvm_backend.isa.available import computes_bfloat16, dot_instructions, rate
from tests.tvm_backend.isa.emulated import mnemonics, needs_tools, relative_error
from tests.tvm_backend.packing.test_integer_network import classifier

from ..quantised_nets import Network

_ALL = ("neon", "dotprod", "i8mm", "bf16")
_ROUNDED = 1e-5  # floats in another order
_OF_BFLOAT16 = 0.03  # the limit of an export in bf16


def cpu(*features):
    return tvm.target.Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": [f"+{item}" for item in features]}
    )


@pytest.mark.parametrize(
    ("features", "integers", "bfloat16"),
    [
        (("neon",), "", "autotune_bf16_multiply_add_128"),
        (("neon", "dotprod"), "autotune_sdot_128", "autotune_bf16_multiply_add_128"),
        (_ALL, "autotune_usdot_128", "autotune_bfdot_128"),
    ],
)
def test_a_cpu_is_asked_for_the_instructions_that_it_has(target, features, integers, bfloat16):
    here = cpu(*features)
    assert dot_instructions(here, "integers").vector == integers
    assert dot_instructions(here, "bfloat16").vector == bfloat16
    assert computes_bfloat16(here) == ("bf16" in features)


def test_a_matrix_product_is_twice_as_fast_as_one_of_vectors(target):
    assert dot_instructions(cpu(*_ALL), "integers").tiles is MatrixProduct
    assert dot_instructions(cpu("neon", "dotprod"), "integers").tiles is None
    assert rate(cpu(*_ALL), "integers") == 2 * rate(cpu("neon", "dotprod"), "integers")


def test_sums_and_operands_of_a_matrix_product_have_room_in_the_registers():
    assert MatrixProduct(1, 6, 1, 3, 3, 4, 16, 1, 1, 1).fits()
    assert not MatrixProduct(1, 8, 1, 3, 3, 4, 16, 1, 1, 1).fits()
    assert not MatrixProduct(1, 6, 1, 3, 3, 1, 4, 1, 1, 1).fits(), "12 bytes of a row are one and a half steps"


@pytest.fixture
def images():
    """A network of convolutions of few and of many channels, by channels, with strides and holes, and a product."""

    def make():
        net = Network((1, 3, 14, 12))
        net.add("Relu", net.conv(3, 32, strides=[2, 2], pads=[1, 1, 1, 1]))
        net.add("Relu", net.conv(32, 32, pads=[1, 1, 1, 1], group=32))
        net.add("Relu", net.conv(32, 48, 1))
        net.add("Relu", net.conv(48, 24, pads=[2, 2, 2, 2], dilations=[2, 2]))
        net.add("GlobalAveragePool", net.last)
        net.add("Flatten", net.last)
        net.gemm(24, 10)
        return net

    return make


@needs_tools
def test_a_network_in_float32(target, images, written, tmp_path):
    assert relative_error(written(images()), tmp_path, ["neon"]) < _ROUNDED


@needs_tools
@pytest.mark.parametrize(
    ("features", "used"),
    [
        pytest.param(("neon",), set(), marks=pytest.mark.slow),
        (("neon", "dotprod"), {"sdot"}),
        (_ALL, {"usdot", "usmmla"}),
    ],
)
def test_a_quantised_network_is_the_same_bit_for_bit(target, quantised, tmp_path, features, used):
    assert relative_error(quantised(classifier()), tmp_path, features) == 0
    assert mnemonics(tmp_path) & {"sdot", "udot", "usdot", "usmmla", "smmla"} == used


@needs_tools
def test_a_network_in_bfloat16(target, images, written, tmp_path):
    assert _ROUNDED < relative_error(written(images()), tmp_path, _ALL, "bf16") < _OF_BFLOAT16
    assert {"bfdot", "bfmmla", "bfcvtn"} <= mnemonics(tmp_path)


@needs_tools
@pytest.mark.slow
def test_many_weights_in_bfloat16_are_multiplied_without_instructions_for_them(target, written, tmp_path):
    net = Network((1, 1024))
    net.matmul(1024, 1024)
    assert _ROUNDED < relative_error(written(net), tmp_path, ["neon"], "bf16") < _OF_BFLOAT16
    assert not {"bfdot", "bfmmla"} & mnemonics(tmp_path)


@pytest.fixture
def lstm(tmp_path):
    """Writes a layer of an LSTM, and the same with weights of 8 bits."""

    def write(*, rounded):
        rng = np.random.default_rng(0)
        steps, size, hidden = 6, 12, 24
        weights = {"w": (1, 4 * hidden, size), "r": (1, 4 * hidden, hidden)}
        constants = [
            onnx.numpy_helper.from_array(rng.uniform(-0.3, 0.3, shape).astype(np.float32), name)
            for name, shape in weights.items()
        ]
        node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)
        types = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", (steps, 1, size)), ("y", (steps, 1, 1, hidden)))
        ]
        graph = helper.make_graph([node], "lstm", types[:1], types[1:], constants)
        path = tmp_path / "lstm.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        if not rounded:
            return path
        result = tmp_path / "rounded.onnx"
        quantize_dynamic(path, result, op_types_to_quantize=["LSTM"], weight_type=QuantType.QInt8)
        return result

    return write


@needs_tools
@pytest.mark.parametrize(
    ("features", "rounded"),
    [
        (("neon", "dotprod"), True),
        pytest.param(_ALL, True, marks=pytest.mark.slow),
        pytest.param(("neon",), False, marks=pytest.mark.slow),
    ],
)
def test_a_recurrent_layer(target, lstm, tmp_path, features, rounded):
    assert relative_error(lstm(rounded=rounded), tmp_path, features) < _ROUNDED
