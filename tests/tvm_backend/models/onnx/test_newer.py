"""Old operators are converted to a version that the importer knows, and compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.importer import convert
from autotune.tvm_backend.models.onnx.operators.nodes import opset_of
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.models.onnx.simplify import fix_shapes

X = InputSpec("x", (1, 2, 4, 4), "float32")
EMPTY = np.zeros(0, np.float32)


def model(opset: int, nodes: list[Any], constants: dict[str, Any] | None = None) -> Any:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 4] if name == "x" else None) for name in "xy"
    )
    weights = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def resized() -> Any:
    """As PyTorch writes it at opset 11: empty constants beside the sizes."""
    node = helper.make_node("Resize", ["x", "roi", "scales", "sizes"], ["y"], mode="nearest")
    return model(11, [node], {"roi": EMPTY, "scales": EMPTY, "sizes": np.array([1, 2, 8, 8])})


def sliced() -> Any:
    relu = helper.make_node("Relu", ["x"], ["r"])
    return model(9, [relu, helper.make_node("Slice", ["r"], ["y"], axes=[2, 3], starts=[1, 0], ends=[3, -1])])


def run(proto: Any) -> Any:
    x = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def taken(proto: Any, folder: Path) -> Any:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return read_model(path, {})


def test_resize_leaves_out_what_is_empty_beside_sizes(target: Any, tmp_path: Path) -> None:
    newer = convert(fix_shapes(resized(), [X]), [X])
    assert list(newer.graph.node[-1].input)[1:3] == ["", ""]
    np.testing.assert_array_equal(run(newer), run(resized()))
    assert taken(resized(), tmp_path).rewritten is not None


def test_slice_with_attributes_gets_inputs(target: Any, tmp_path: Path) -> None:
    newer = convert(fix_shapes(sliced(), [X]), [X])
    assert opset_of(newer) == 13
    np.testing.assert_array_equal(run(newer), run(sliced()))
    assert taken(sliced(), tmp_path).rewritten is not None


def test_what_onnx_cannot_convert_stays_as_it_is() -> None:
    node = helper.make_node("Upsample", ["x", "scales"], ["y"], mode="nearest")
    graph = model(9, [node], {"scales": np.array([1, 1, 2, 2], np.float32)})
    graph.graph.node[0].attribute[0].s = b"cubic"  # of which neither knows
    fixed = fix_shapes(graph, [X])
    assert opset_of(convert(fixed, [X])) == 9


def test_new_graphs_are_not_touched() -> None:
    fixed = fix_shapes(model(17, [helper.make_node("Relu", ["x"], ["y"])]), [X])
    assert convert(fixed, [X]) == fixed
