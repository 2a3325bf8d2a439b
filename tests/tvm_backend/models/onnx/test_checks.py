"""What could not end well is one line when it is read, and not a traceback after the tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.checks import check_inputs, check_runs, check_sizes
from autotune.tvm_backend.models.onnx.read import read_model

PATH = Path("m.onnx")


def graph(nodes: list[Any], inputs: list[tuple[str, list[Any]]], **constants: Any) -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    made = helper.make_graph(nodes, "g", values, outputs, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])


def floats(*shape: int) -> list[InputSpec]:
    return [InputSpec("x", shape, "float32")]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "m.onnx has no inputs, .*; export it with one"),
        ([("x", [2]), ("x", [2])], "2 inputs of the name 'x'; "),
        ([("x", [0, 4])], "input 'x' has a dimension of 0, and so has an output; .*--input x=SHAPE"),
    ],
)
def test_inputs_that_cannot_be(inputs: list[Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_inputs(PATH, graph([relu()], inputs), ())


def test_a_dimension_of_0_may_be_given_another_size() -> None:
    check_inputs(PATH, graph([relu()], [("x", [0, 4])]), {"x"})


def test_an_input_larger_than_any_memory() -> None:
    with pytest.raises(ModelError, match=r"input 'x' is 2147483648x2147483648, which is more than 2\^32 elements; "):
        check_sizes(PATH, graph([relu()], [("x", [None, None])]), floats(2**31, 2**31))


def test_results_larger_than_any_memory() -> None:
    pad = helper.make_node("Pad", ["x", "pads"], ["y"], "grow")
    with pytest.raises(ModelError, match=r"operator Pad 'grow' is 2x1099511627779"):
        check_sizes(PATH, graph([pad], [("x", [2, 3])], pads=np.array([0, 0, 0, 2**40])), floats(2, 3))
    resize = helper.make_node("Resize", ["x", "", "scales"], ["y"])
    scales = np.array([1e9, 1e9], np.float32)
    with pytest.raises(ModelError, match=r"operator Resize 'y' is .*2\^32"):
        check_sizes(PATH, graph([resize], [("x", [2, 3])], scales=scales), floats(2, 3))


def test_a_range_that_never_ends() -> None:
    steps = helper.make_node("Range", ["zero", "ten", "zero"], ["r"], "steps")
    add = helper.make_node("Add", ["x", "r"], ["y"])
    given = graph([steps, add], [("x", [10])], zero=np.float32(0), ten=np.float32(10))
    with pytest.raises(ModelError, match="operator Range 'steps' has a step of 0; "):
        check_sizes(PATH, given, floats(10))


def test_what_onnx_runtime_cannot_load() -> None:
    unknown = helper.make_node("Relu", ["x"], ["y"], domain="of.nobody")
    given = graph([unknown], [("x", [2])])
    given.opset_import.append(helper.make_opsetid("of.nobody", 1))
    with pytest.raises(ModelError, match=r"m.onnx: ONNX Runtime cannot read the model .*; an export is verified"):
        check_runs(PATH, given, floats(2))
    check_runs(PATH, graph([relu()], [("x", [2])]), floats(2))


def test_large_weights_are_not_read_to_see_whether_onnx_runtime_takes_a_graph() -> None:
    weight = np.zeros((200, 200), np.float32)
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    check_runs(PATH, graph([product], [("x", [3, 200])], w=weight), floats(3, 200))
    with pytest.raises(ModelError, match="m.onnx: ONNX Runtime cannot read the model with inputs .*x=3x100"):
        check_runs(PATH, graph([product], [("x", [3, 100])], w=weight), floats(3, 100))
    other = graph([product], [("x", [3, 200])], w=weight.astype(np.float64))
    with pytest.raises(ModelError, match="m.onnx: ONNX Runtime cannot read the model"):
        check_runs(PATH, other, floats(3, 200))


def test_an_empty_input_that_leaves_no_output_empty_is_taken() -> None:
    node = helper.make_node("CastLike", ["x", "like"], ["y"])
    check_inputs(PATH, graph([node], [("x", [2, 3]), ("like", [0])]), ())


def test_a_constant_without_its_data_is_left_to_who_imports_it() -> None:
    proto = graph([helper.make_node("Add", ["x", "c"], ["y"])], [("x", [4])], c=np.float32(1))
    proto.graph.initializer[0].ClearField("raw_data")
    check_sizes(PATH, proto, floats(4))


@pytest.mark.parametrize(
    ("kind", "served"),
    [("TreeEnsembleClassifier", "lleaves, treelite"), ("TreeEnsemble", "lleaves"), ("SVMRegressor", "ONNX Runtime")],
)
def test_what_is_no_network_is_refused_with_what_serves_it(tmp_path, kind, served):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(kind, ["x"], ["y"], "trees", domain="ai.onnx.ml")
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", [x], [y])).SerializeToString())
    with pytest.raises(ModelError, match=f"{kind}.*trees.* is no network, .*{served}"):
        read_model(path, {})


def saved(proto: Any, folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(proto, str(path))
    return path


def test_a_file_that_onnx_runtime_cannot_load_is_refused_for_that_and_not_for_an_operator(
    target: Any, tmp_path: Path
) -> None:
    """An LSTM of opset 6, which ONNX Runtime has no kernel for, behind a Slice of its opset."""
    nodes = [
        helper.make_node("Slice", ["w"], ["part"], axes=[2], starts=[0], ends=[2]),
        helper.make_node("LSTM", ["x", "part", "r"], ["y"], hidden_size=1),
    ]
    weights = {"w": np.zeros((1, 4, 4), np.float32), "r": np.zeros((1, 4, 1), np.float32)}
    proto = graph(nodes, [("x", [3, 1, 2])], **weights)
    proto.opset_import[0].version = 6
    with pytest.raises(ModelError, match=r"m.onnx: ONNX Runtime cannot read the model .* LSTM\(1\)"):
        read_model(saved(proto, tmp_path), {})


def test_a_file_that_onnx_runtime_cannot_run_is_refused_for_that(target: Any, tmp_path: Path) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "grow")
    proto = graph([node], [("x", [1, "channels", 5])], w=np.zeros((3, 4, 2), np.float32))
    given = {"x": InputSpec("x", (1, 2, 5), "float32")}
    with pytest.raises(
        ModelError, match=r"m.onnx: ONNX Runtime cannot run .* \(x=1x2x5\): .*; give others with --input"
    ):
        read_model(saved(proto, tmp_path), given)


def _cut_short(proto: Any) -> bytes:
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:1]
    return bytes(proto.SerializeToString())


def _of_no_type(proto: Any) -> bytes:
    proto.graph.initializer[0].data_type = 29
    return bytes(proto.SerializeToString())


def _of_no_text(proto: Any) -> bytes:
    return bytes(proto.SerializeToString().replace(b"Add", b"\xffdd"))


@pytest.mark.parametrize("damage", [_cut_short, _of_no_type, _of_no_text])
def test_a_damaged_graph_is_one_line_that_names_the_file(damage: Any, tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "half"], ["y"])
    path = tmp_path / "m.onnx"
    path.write_bytes(damage(graph([add], [("x", [2])], half=np.float16(0.5))))
    with pytest.raises(ModelError, match=r"m\.onnx") as caught:
        read_model(path, {})
    assert len(str(caught.value).splitlines()) == 1
