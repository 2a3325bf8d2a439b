"""A graph is cut where it chooses: what enters a choice is put out, and can be given."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.tvm_backend.models.onnx.choices import choices_of, given, given_inputs, with_outputs

X = np.float32([[3, 1, 2, 5]])


def best_two() -> Any:
    """The two largest of some doubled numbers, negated; and an index that is chosen by integers."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("TopK", ["doubled", "k"], ["values", "places"], name="top"),
        helper.make_node("Neg", ["values"], ["y"]),
        helper.make_node("ArgMax", ["places"], ["z"], axis=1),
        helper.make_node("Floor", ["x"], ["whole"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    outputs += [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("places", "z")]
    graph = helper.make_graph(nodes, "g", [x], outputs, [numpy_helper.from_array(np.int64([2]), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(proto: Any, **feed: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def test_choices_are_made_by_floats_that_the_graph_computes() -> None:
    assert choices_of(best_two()) == {"doubled": "TopK"}  # not by integers, nor by an input


@pytest.mark.parametrize(
    ("operators", "names"),
    [
        (("ArgMax", "ArgMin", "Ceil", "Floor", "Round"), ("a",)),
        (("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), ("a", "b")),
    ],
)
def test_an_operator_chooses_by_all_of_its_inputs(operators: tuple[str, ...], names: tuple[str, ...]) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    sums = [helper.make_node("Add", ["x", "x"], [name]) for name in names]
    for operator in operators:
        graph = helper.make_graph([*sums, helper.make_node(operator, names, ["y"])], "g", [x], [])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        assert choices_of(model) == dict.fromkeys(names, operator)


def test_what_a_choice_is_made_by_is_put_out_after_the_outputs() -> None:
    *outputs, doubled = run(with_outputs(best_two(), ["doubled"]), x=X)
    assert len(outputs) == 3
    assert np.array_equal(doubled, 2 * X)


def test_a_graph_goes_on_with_what_it_is_given_and_puts_out_what_it_computes() -> None:
    values = {"doubled": np.float32([[1, 9, 8, 2]])}
    y, places, _, doubled = run(given(best_two(), values), x=X, **given_inputs(values))
    assert y.tolist() == [[-9, -8]]
    assert places.tolist() == [[1, 2]]
    assert np.array_equal(doubled, 2 * X)
