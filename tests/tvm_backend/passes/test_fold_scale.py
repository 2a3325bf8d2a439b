"""Folded networks compute what ONNX Runtime computes, with no multiplication left after a convolution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from autotune.tvm_backend.passes.fold_scale import fold_scales

_PASSES = relax.transform
_CONV = "relax.nn.conv2d"


class Net:
    """A graph on an input x (1, C, 6, 6); every method adds a node and returns the name of its output."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._rng = np.random.default_rng(0)

    def given(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def random(self, *shape: int) -> str:
        return self.given(self._rng.uniform(0.5, 1.5, shape))

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def conv(self, x: str, inputs: int, outputs: int, *, bias: bool = False, group: int = 1) -> str:
        weight = self.given(self._rng.standard_normal((outputs, inputs // group, 3, 3)) / 5)
        return self.op("Conv", x, weight, *([self.random(outputs)] if bias else []), group=group)

    def norm(self, x: str, channels: int) -> str:
        return self.op("BatchNormalization", x, *(self.random(channels) for _ in range(4)))

    def folded(self, *outputs: str) -> Counter[str]:
        """Fold the network, compare what it computes with ONNX Runtime, and count its operators."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, self.channels, 6, 6))
        graph = helper.make_graph(self.nodes, "net", [given], values, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        folding = [_PASSES.DecomposeOpsForInference(), _PASSES.CanonicalizeBindings(), _PASSES.FoldConstant()]
        module = fold_scales(tvm.transform.Sequential(folding)(from_onnx(model)))
        assert_same(model, module)
        return operators(module)


def assert_same(model: Any, module: Any) -> None:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target({"kind": "llvm", "opt-level": 0})), tvm.cpu())
    outputs = machine["main"](tvm.runtime.tensor(data))
    values = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else list(outputs)
    for value, wanted in zip(values, session.run(None, {"x": data}), strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-4, atol=1e-4)


def operators(module: Any) -> Counter[str]:
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    return Counter(str(item.value.op.name) for item in bindings if isinstance(item.value, relax.Call))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_batch_normalisation_leaves_one_addition(bias: bool, group: int) -> None:
    net = Net(4)
    result = net.op("Relu", net.norm(net.conv("x", 4, 8, bias=bias, group=group), 8))
    assert net.folded(result) == {_CONV: 1, "relax.add": 1, "relax.nn.relu": 1}


def test_chain_of_normalised_convolutions() -> None:
    net = Net(3)
    inner = net.op("Relu", net.norm(net.conv("x", 3, 8), 8))
    assert net.folded(net.norm(net.conv(inner, 8, 4), 4)) == {_CONV: 2, "relax.add": 2, "relax.nn.relu": 1}


def test_scale_and_shift_after_normalisation() -> None:
    net = Net(3)
    x = net.op("Mul", net.random(8, 1, 1), net.norm(net.conv("x", 3, 8), 8))
    x = net.op("Sub", net.random(1, 8, 1, 1), net.op("Add", x, net.random(1, 8, 1, 1)))
    assert net.folded(net.op("Div", x, net.given(3))) == {_CONV: 1, "relax.add": 1}


def test_normalisation_elsewhere_is_one_multiplication_and_one_addition() -> None:
    net = Net(4)
    pooled = net.op("MaxPool", "x", kernel_shape=[2, 2])
    assert net.folded(net.norm(net.norm(pooled, 4), 4)) == {
        "relax.nn.max_pool2d": 1,
        "relax.multiply": 1,
        "relax.add": 1,
    }


def test_convolution_with_another_use_keeps_its_weights() -> None:
    net = Net(3)
    x = net.conv("x", 3, 8)
    counts = net.folded(net.op("Add", net.op("Relu", x), net.norm(x, 8)))
    assert counts == {_CONV: 1, "relax.multiply": 1, "relax.add": 2, "relax.nn.relu": 1}


def test_run_ends_at_a_value_with_two_uses() -> None:
    net = Net(3)
    x = net.norm(net.conv("x", 3, 8), 8)
    y = net.op("Mul", x, net.random(8, 1, 1))
    assert net.folded(net.op("Mul", x, y)) == {_CONV: 1, "relax.add": 1, "relax.multiply": 2}


def test_convolution_that_is_an_output_keeps_its_weights() -> None:
    net = Net(3)
    x = net.conv("x", 3, 8)
    assert net.folded(net.norm(x, 8), x) == {_CONV: 1, "relax.multiply": 1, "relax.add": 1}


def test_output_used_once_inside() -> None:
    net = Net(3)
    x = net.op("Mul", net.conv("x", 3, 8), net.random(8, 1, 1))
    assert net.folded(x, net.op("Add", x, net.given(1))) == {_CONV: 1, "relax.add": 1}


@pytest.mark.parametrize(("shape", "kind"), [((1, 1, 4, 4), "Mul"), ((8, 4, 4), "Mul"), ((1, 8, 1, 1), "Pow")])
def test_constants_that_are_no_factor_of_a_channel_stay(shape: tuple[int, ...], kind: str) -> None:
    net = Net(3)
    counts = net.folded(net.op(kind, net.op("Abs", net.conv("x", 3, 8)), net.random(*shape)))
    assert counts["relax.multiply"] + counts["relax.power"] == 1


def test_constant_divided_by_a_value_stays() -> None:
    net = Net(3)
    squares = net.op("Add", net.op("Exp", net.conv("x", 3, 8)), net.given(1))
    assert net.folded(net.op("Div", net.random(8, 1, 1), squares))["relax.divide"] == 1


def test_constant_that_broadens_the_value_stays() -> None:
    net = Net(1)
    assert net.folded(net.op("Mul", "x", net.random(5, 1, 1)))["relax.multiply"] == 1


def test_division_by_zero_stays() -> None:
    net = Net(3)
    positive = net.op("Exp", net.conv("x", 3, 2))
    counts = net.folded(net.op("Div", positive, net.given([[[1.0]], [[0.0]]])))
    assert counts["relax.divide"] == 1


def test_nothing_to_do_drops_nothing() -> None:
    net = Net(3)
    identity = net.op("Mul", net.op("Add", net.conv("x", 3, 2), net.given(0)), net.given(1))
    assert net.folded(identity) == {_CONV: 1}


def test_module_that_branches_is_returned() -> None:
    data = relax.Var("x", relax.TensorType((1, 2, 3, 3), "float32"))
    condition = relax.Var("c", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data, condition]):
        builder.emit_func_output(builder.emit(relax.If(condition, relax.op.add(data, data), data)))
    module = builder.get()
    assert fold_scales(module) is module
