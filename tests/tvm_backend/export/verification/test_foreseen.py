"""What an export of a model will be verified by is known when it is submitted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.options import InputSpec
from autotune.storage.formats import Entry
from autotune.tvm_backend.export.submitted import OnnxModel
from autotune.tvm_backend.export.verification import foreseen

COUNT = 32


def quantised(step: float) -> Any:
    """Two products, between which values are rounded to multiples of a step."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "step", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "middle"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    w = np.random.default_rng(0).standard_normal((COUNT, COUNT)).astype(np.float32)
    constants = {"w": w, "step": np.float32(step), "middle": np.uint8(128)}
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, COUNT])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def otherwise(tmp_path: Path) -> Any:
    """What decides about a network whose runtime is too far from itself."""

    def decided(proto: Any) -> str:
        onnx.save(proto, str(tmp_path / "model.onnx"))
        paths: Any = SimpleNamespace(model=tmp_path / "model.onnx", rewritten_model=lambda _: tmp_path / "none")
        entry = Entry("main", (InputSpec("x", (4, COUNT), "float32"),), ())
        arrays = [np.random.default_rng(1).standard_normal((4, COUNT)).astype(np.float32)]
        return foreseen._otherwise(OnnxModel(paths, 0, entry, {}), arrays, 1)

    return decided


def test_a_quantised_model_is_decided_by_its_weights_in_float32(otherwise: Any) -> None:
    assert otherwise(quantised(0.1)) == "float32"


def test_one_whose_roundings_are_most_of_it_is_decided_by_nothing(otherwise: Any) -> None:
    assert otherwise(quantised(30.0)) == "nothing"
