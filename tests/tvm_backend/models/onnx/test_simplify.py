"""Exporters leave computed shapes; with the inputs' shapes known they are constants, and the graph imports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.read import read_model, read_rewritten
from autotune.tvm_backend.models.onnx.simplify import fix_shapes, is_unfinished, open_sizes, simplify

INPUT = InputSpec("x", (2, 3, 4), "float32")


def model(nodes, constants=(), shape=("batch", 3, 4), output=None):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(*item) for item in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def flattened():
    """Shape -> Gather -> Concat -> Reshape, as PyTorch writes `x.reshape(x.shape[0], -1)`."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    return model(nodes, [(np.array([0]), "zero"), (np.array([-1]), "rest")])


def kinds(proto):
    return [node.op_type for node in proto.graph.node]


def run(proto, x):
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )


def test_a_computed_shape_becomes_a_constant():
    assert is_unfinished(flattened())
    simple = simplify(flattened(), [INPUT])
    assert kinds(simple) == ["Reshape", "Relu"] and not is_unfinished(simple)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(*run(simple, x), *run(flattened(), x))


def test_a_simplified_graph_is_the_same_every_time():
    assert simplify(flattened(), [INPUT]).SerializeToString() == simplify(flattened(), [INPUT]).SerializeToString()


def test_the_graph_that_is_simplified_is_not_changed_itself():
    given = flattened()
    simplify(given, [INPUT])
    assert given == flattened()


def test_shapes_that_were_written_down_and_are_wrong_do_no_harm():
    given = flattened()
    given.graph.value_info.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, [9, 9]))
    given.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 7]))
    assert kinds(simplify(given, [INPUT])) == ["Reshape", "Relu"]


def test_a_weight_that_is_listed_as_an_input_is_a_weight():
    given = model([helper.make_node("Mul", ["x", "w"], ["y"])], [(np.float32(2), "w")])
    given.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, []))
    given.ir_version = 3
    assert [item.name for item in fix_shapes(given, [INPUT]).graph.input] == ["x"]
    assert kinds(simplify(given, [INPUT])) == ["Mul"]


def test_a_branch_that_shapes_decide_is_taken():
    output = [helper.make_tensor_value_info("result", TensorProto.FLOAT, None)]
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["result"])], "then", [], output)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["result"])], "else", [], output)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Equal", ["batch", "two"], ["is_two"]),
        helper.make_node("If", ["is_two"], ["y"], then_branch=then, else_branch=other),
    ]
    assert kinds(simplify(model(nodes, [(np.array(0), "zero"), (np.array(2), "two")]), [INPUT])) == ["Relu"]


def test_a_shape_that_does_not_fit_is_the_users_to_correct():
    given = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [(np.zeros((4, 5), np.float32), "w")])
    with pytest.raises(ModelError, match=r"with inputs of these shapes \(x=2x3x9\)"):
        simplify(given, [InputSpec("x", (2, 3, 9), "float32")])


@pytest.fixture
def saved(tmp_path: Path):
    def save(proto):
        path = tmp_path / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    return save


def test_a_model_that_needs_simplification_gets_it_and_says_so(target, saved):
    imported = read_model(saved(flattened()), {"x": INPUT})
    assert kinds(imported.rewritten) == ["Reshape", "Relu"]


def test_a_model_that_needs_no_simplification_is_imported_as_it_is(target, saved):
    imported = read_model(saved(model([helper.make_node("Relu", ["x"], ["y"])])), {"x": INPUT})
    assert imported.rewritten is None


def test_what_was_rewritten_is_read_again_as_it_was(target, saved, tmp_path):
    import tvm_ffi

    imported = read_model(saved(flattened()), {"x": INPUT})
    again = tmp_path / "rewritten.onnx"
    again.write_bytes(imported.rewritten.SerializeToString())
    assert tvm_ffi.structural_equal(read_rewritten(again, imported.inputs).module, imported.module)


def test_sizes_that_are_asked_for_in_place_of_fixed_ones_are_open():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], shape=(8, 3, 4), output=(8, 3, 4))
    opened = open_sizes(proto, [(INPUT,), (InputSpec("x", (5, 3, 4), "float32"),)])
    session = onnxruntime.InferenceSession(opened.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows in (2, 5, 8):
        (y,) = session.run(None, {"x": np.ones((rows, 3, 4), np.float32)})
        assert y.shape == (rows, 3, 4)


@pytest.mark.parametrize("shape", [("batch", 3, 4), (2, 3, 4), None])
def test_a_graph_that_takes_what_is_asked_for_stays_as_it_is(shape):
    proto = model([helper.make_node("Relu", ["x"], ["y"])], shape=shape)
    assert open_sizes(proto, [(INPUT,)]) is proto
