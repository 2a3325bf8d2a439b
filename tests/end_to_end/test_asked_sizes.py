"""Sizes and types that a user asks for in place of those that a file fixes are those of its export, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .conftest import User


def write_network(path: Path) -> Path:
    """A lookup and a convolution, of ten small images by the file."""
    draw = np.random.default_rng(1).standard_normal
    weights = {"w": draw((4, 3, 3, 3)).astype(np.float32), "table": draw((8, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gather", ["table", "ids"], ["t"]),
        helper.make_node("Add", ["f", "t"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [10, 3, 8, 8]), value("ids", TensorProto.INT64, [10])]
    y = value("y", TensorProto.FLOAT, [10, 4])
    tensors = [numpy_helper.from_array(item, name) for name, item in weights.items()]
    graph = helper.make_graph(nodes, "network", inputs, [y], tensors, value_info=[value("f", 1, [10, 4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_an_export_has_the_sizes_and_types_that_were_asked_for(tmp_path: Path) -> None:
    (tmp_path / "autotune.toml").write_text(f'[machine]\nlock_dir = "{tmp_path}/locks"\n')
    user = User(tmp_path)
    sizes = ["--input", "x=2x3x16x16", "--input", "ids=2:int32"]
    user.ok("submit", write_network(tmp_path / "network.onnx"), *sizes, "--trials", 1)
    user.ok("export", "last", "--quick", "-o", tmp_path / "lib")
    report = json.loads((tmp_path / "lib" / "report.json").read_text())
    assert [item["shape"] for item in report["inputs"]] == [[2, 3, 16, 16], [2]]
    assert [item["dtype"] for item in report["inputs"]] == ["float32", "int32"]
    assert report["outputs"][0]["shape"] == [2, 4]
    assert report["largest_relative_error"] < 1e-5
