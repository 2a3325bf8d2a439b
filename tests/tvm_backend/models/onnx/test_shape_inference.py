"""Inference finds the same without the values of large weights, and does not touch the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.models.onnx import shape_inference
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes, without_values

LARGE = np.ones((256, 300), np.float32)


@pytest.fixture
def graph() -> Any:
    """A product with a large weight, whose result is given a shape by a small constant."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Reshape", ["p", "shape"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(LARGE, "w"), numpy_helper.from_array(np.array([2, 600]), "shape")]
    made = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sizes(value: Any) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_it_finds_what_inference_with_all_weights_finds(graph: Any) -> None:
    before = graph.SerializeToString()
    found = infer_shapes(graph)
    whole = onnx.shape_inference.infer_shapes(graph, data_prop=True).graph
    assert list(found.value_info) == list(whole.value_info) and list(found.output) == list(whole.output)
    assert sizes(found.value_info[0]) == [4, 300] and sizes(found.output[0]) == [2, 600]
    assert graph.SerializeToString() == before


def test_large_weights_are_left_out_and_small_ones_are_not(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, shape = without_values(graph).graph.initializer
    assert weight.ByteSize() < 50 and list(weight.dims) == [256, 300] and weight.data_type == TensorProto.FLOAT
    assert numpy_helper.to_array(shape).tolist() == [2, 600]
    given = list[Any]()
    monkeypatch.setattr(
        shape_inference.onnx.shape_inference, "infer_shapes", lambda proto, **_options: given.append(proto) or proto
    )
    infer_shapes(graph)
    assert given[0].ByteSize() < 1000


def test_functions_and_parts_of_graphs_come_along(graph: Any) -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["y"], ["z"])], "inner", [], [graph.graph.output[0]])
    graph.graph.node.append(helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=inner))
    opset = helper.make_opsetid("", 17)
    graph.functions.append(
        helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], [opset])
    )
    light = without_values(graph)
    assert list(light.functions) == list(graph.functions) and list(light.graph.node) == list(graph.graph.node)
    assert light.opset_import == graph.opset_import and light.ir_version == graph.ir_version
