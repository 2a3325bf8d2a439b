"""Networks of ONNX under construction, and how their packed modules compare with ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from autotune.tvm_backend.models.onnx.importer import import_graph
from autotune.tvm_backend.packing.blocked_images import pack_layouts

_PASSES = relax.transform


class Net:
    """A graph under construction; every method adds a node and returns the name of its output."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._rng = np.random.default_rng(0)

    def constant(self, *shape: int) -> str:
        value = self._rng.standard_normal(shape).astype(np.float32) / max(np.sqrt(np.prod(shape[1:])), 1)
        return self.given(value.astype(np.float32))

    def given(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def factors(self, *shape: int) -> str:
        """A constant of positive numbers."""
        return self.given(self._rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, *, bias: bool = True, **attrs: Any) -> str:
        weight = self.constant(outputs, inputs // attrs.get("group", 1), kernel, kernel)
        attrs.setdefault("pads", [kernel // 2] * 4)
        return self.op("Conv", x, weight, *([self.constant(outputs)] if bias else []), **attrs)

    def model(self, *outputs: str) -> Any:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, "net", [given], values, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


Build = Callable[[Net], str]


def imported(model: Any) -> Any:
    """The model as the passes over images get it."""
    folding = [_PASSES.DecomposeOpsForInference(), _PASSES.CanonicalizeBindings(), _PASSES.FoldConstant()]
    shapes = {item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in model.graph.input}
    return tvm.transform.Sequential(folding)(import_graph(model, shapes, dict.fromkeys(shapes, "float32")))


def packed(build: Build, *shape: int) -> tuple[Any, Any]:
    """The ONNX model that `build` makes for an input of that shape, and its packed module."""
    net = Net(*shape)
    model = net.model(build(net))
    return model, pack_layouts(imported(model))


def operators(module: Any) -> Counter[str]:
    """How often `main` calls each operator; a tensor program counts under its name without a number."""
    names: Counter[str] = Counter()
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                called = binding.value.op
                first = binding.value.args[0]
                program = called.name == "relax.call_tir"
                names[str(first.name_hint).rstrip("0123456789") if program else str(called.name)] += 1
    return names


def transforms(module: Any) -> int:
    return sum(count for name, count in operators(module).items() if name.startswith("layout_"))


def run(module: Any, data: Any) -> list[Any]:
    """The outputs of the module, compiled without tuning."""
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target({"kind": "llvm", "opt-level": 0})), tvm.cpu())
    outputs = machine["main"](tvm.runtime.tensor(data))
    return [item.numpy() for item in ([outputs] if isinstance(outputs, tvm.runtime.Tensor) else outputs)]


def assert_same(model: Any, module: Any) -> None:
    """Compare the module's outputs with ONNX Runtime's."""
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for output, wanted in zip(run(module, data), session.run(None, {"x": data}), strict=True):
        assert output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)


def check(build: Build, *shape: int, conversions: int | None = None) -> Counter[str]:
    """Compare with ONNX Runtime; count the layout conversions if a number is given; return the operators."""
    model, module = packed(build, *shape)
    assert_same(model, module)
    if conversions is not None:
        assert transforms(module) == conversions, operators(module)
    return operators(module)
