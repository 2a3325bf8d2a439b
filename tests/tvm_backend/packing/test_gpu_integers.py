"""What a quantised network becomes for a GPU: products of signed bytes, which put out what ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnxruntime.quantization import QuantType
from tvm import relax

from autotune.tvm_backend.export.runners import onnx_session
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.packing.gpu_integers import gpu_integers

from ..quantised_nets import Network

_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def network(shape=(2, 6, 9, 11)) -> Network:
    """A convolution with padding and strides, one by channels, a residual sum, a product, and bytes as they come."""
    net = Network(shape)
    net.requantised()
    first = net.add("Relu", net.conv(6, 16, strides=[2, 2], pads=[1, 0, 1, 2]))
    net.conv(16, 16, pads=[1, 1, 1, 1], group=16)
    net.add("Add", net.conv(16, 16, pads=[1, 1, 1, 1]), first)
    net.add("GlobalAveragePool", net.last)
    net.add("Flatten", net.last)
    net.gemm(16, 10)
    return net


def multiplied(module):
    """The types that convolutions and products multiply, in order."""
    calls = [item.value for block in module["main"].body.blocks for item in block.bindings]
    wanted = ("relax.nn.conv2d", "relax.matmul")
    return [str(call.args[0].ty.dtype) for call in calls if isinstance(call, relax.Call) and call.op.name in wanted]


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_convolutions_and_products_take_signed_bytes(quantised, activations, per_channel):
    net = network()
    path = quantised(net, activations=activations, per_channel=per_channel)
    module = gpu_integers(read_model(path, {}).module)
    assert multiplied(module) == ["int8", "float32", "int8", "int8"], "the convolution by channels stays in floats"
    data = net.rng.standard_normal(net.shape).astype(np.float32)
    (expected,) = onnx_session(path, 1).run(None, {"input": data})
    machine = relax.VirtualMachine(relax.build(module, _TARGET), tvm.cpu())
    given = machine["main"](tvm.runtime.tensor(data)).numpy()
    step = np.diff(np.unique(expected)).min()
    assert np.abs(given - expected).max() < 1.5 * step
    assert (np.abs(given - expected) > step / 2).mean() < 0.1, "few are rounded otherwise"


def test_a_network_without_bytes_stays_as_it_is(written):
    net = Network((2, 6, 9, 11))
    net.add("Relu", net.conv(6, 16))
    module = read_model(written(net), {}).module
    assert gpu_integers(module) is module


def test_weights_that_are_no_signed_bytes_stay_in_floats(written):
    net = Network((5, 64))
    net.requantised()
    net.matmul_of(net.rng.integers(0, 256, (64, 8), np.uint8), 0.02)
    assert multiplied(gpu_integers(read_model(written(net), {}).module)) == ["float32"]
