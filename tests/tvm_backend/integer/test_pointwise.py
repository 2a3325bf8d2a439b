"""What is computed element by element is what ONNX Runtime computes, for all pairs of bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tvm_backend.integer.conftest import Network, differences, kernels

_PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256))).reshape(2, 1, 1, 256, 256).astype(np.uint8)


def quantised_operator(operator: str, seed: int) -> onnx.ModelProto:
    """An operator on two bytes, with scales and zero points that the seed draws."""
    rng = np.random.default_rng(seed)
    names = ("a", "b", "c")
    constants = {f"{name}_scale": np.float32(rng.uniform(0.02, 0.1)) for name in names}
    constants |= {f"{name}_zero": np.uint8(rng.integers(256)) for name in names}
    about = {name: [f"{name}_scale", f"{name}_zero"] for name in names}
    nodes = [helper.make_node("DequantizeLinear", [name, *about[name]], [f"{name}_float"]) for name in "ab"]
    nodes.append(helper.make_node(operator, ["a_float", "b_float"], ["c_float"]))
    nodes.append(helper.make_node("QuantizeLinear", ["c_float", *about["c"]], ["c"]))
    given = [helper.make_tensor_value_info(name, TensorProto.UINT8, _PAIRS[0].shape) for name in names]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, operator, given[:2], given[2:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("operator", ("Add", "Mul"))
def test_all_pairs_of_bytes_give_what_onnx_runtime_computes(tmp_path, here, operator, seed):
    path = tmp_path / "operator.onnx"
    onnx.save(quantised_operator(operator, seed), path)
    assert differences(path, here, *_PAIRS) == (0.0, 0.0)


@pytest.mark.parametrize("first", ("convolution", "image"))
def test_an_addition_in_a_convolution_rounds_as_onnx_runtime_does_in_either_order(quantised, here, first):
    net = Network((1, 16, 128, 128))
    image = net.conv(16, 16, 1)
    convolution = net.conv(16, 16, 1)
    net.add("Add", *((convolution, image) if first == "convolution" else (image, convolution)))
    net.add("Relu", net.last)
    path = quantised(net)
    assert "integer_conv2d_add" in kernels(path, here)
    assert differences(path, here) == (0.0, 0.0)
