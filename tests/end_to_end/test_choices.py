"""A detector that chooses among scores that nearly tie is exported, and what its choice is made by is verified."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from .conftest import User


def write_detector(path: Path) -> Path:
    """Scores that differ by less than the order of their additions changes, and the boxes of the best of them."""
    draw = np.random.default_rng(1).standard_normal
    weights = {
        "w": (draw((512, 1)) @ np.ones((1, 256)) + 1e-8 * draw((512, 256))).astype(np.float32),
        "boxes": draw((256, 4)).astype(np.float32),
        "k": np.int64([32]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Sigmoid", ["scores"], ["likely"]),
        helper.make_node("TopK", ["likely", "k"], ["best", "places"]),
        helper.make_node("Gather", ["boxes", "places"], ["picked"], axis=0),
        helper.make_node("Squeeze", ["picked"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 4])
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "detector", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def write_selection(path: Path) -> Path:
    """Scores that differ as little, and those of them that are above their mean."""
    draw = np.random.default_rng(1).standard_normal
    weight = (draw((512, 1)) @ np.ones((1, 256)) + 1e-8 * draw((512, 256))).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ReduceMean", ["scores"], ["mean"], axes=[1]),
        helper.make_node("Greater", ["scores", "mean"], ["above"]),
        helper.make_node("NonZero", ["above"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["scores", "rows"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "selection", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.slow
def test_a_selection_at_its_threshold_may_have_another_count(tmp_path: Path) -> None:
    (tmp_path / "autotune.toml").write_text(f'[machine]\nlock_dir = "{tmp_path}/locks"\n')
    user = User(tmp_path)
    user.ok("submit", write_selection(tmp_path / "selection.onnx"), "--trials", 1)
    printed = user.ok("export", "last", "--quick", "-o", tmp_path / "lib")
    report = json.loads((tmp_path / "lib" / "report.json").read_text())
    (choice,) = report["choices"]
    assert choice["output"] == "y" and choice["operators"] == ["Greater"] and choice["same"] < choice["rows"]
    count, most = report["padding"]["counted"]["y_count"]
    assert f"y_count depends on the data: it is {count} of at most {most} on what was verified\n" in printed


def test_a_detector_whose_scores_nearly_tie_is_exported_with_a_word_on_its_choice(tmp_path: Path) -> None:
    (tmp_path / "autotune.toml").write_text(f'[machine]\nlock_dir = "{tmp_path}/locks"\n')
    user = User(tmp_path)
    user.ok("submit", write_detector(tmp_path / "detector.onnx"), "--trials", 1)
    printed = user.ok("export", "last", "--quick", "-o", tmp_path / "lib")
    (choice,) = json.loads((tmp_path / "lib" / "report.json").read_text())["choices"]
    assert choice["output"] == "y" and choice["operators"] == ["TopK"]
    assert choice["same"] < choice["rows"] == 32
    assert f"y is a choice by TopK: what it chooses by is within {choice['error']:.1g}" in printed
