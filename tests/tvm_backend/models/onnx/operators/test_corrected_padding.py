"""Convolutions whose padding follows from the size of the output: ONNX Runtime computes the same, with no copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from autotune.tvm_backend.models.onnx.importer import import_graph

_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("size", "kernel", "attributes"),
    [
        ((7, 8), (3, 2), {}),
        ((9, 10), (4, 3), {"strides": [2, 3]}),
        ((5, 5), (1, 1), {"strides": [3, 2]}),
        ((12,), (5,), {"strides": [2]}),
    ],
)
def test_an_output_of_the_size_of_the_input(
    mode: str, size: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(len(size))
    weights = rng.standard_normal((4, 3, *kernel)).astype(np.float32)
    x = rng.standard_normal((1, 3, *size)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = import_graph(model, {"x": list(x.shape)}, {"x": "float32"})
    assert "pad(" not in str(module)
    machine = relax.VirtualMachine(relax.build(module, _TARGET), tvm.cpu())
    output = machine["main"](tvm.runtime.tensor(x)).numpy()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})[0]
    assert output.shape == wanted.shape
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)
