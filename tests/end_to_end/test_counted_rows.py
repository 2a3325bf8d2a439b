"""A detector that ends with its non-maximum suppression puts out as many boxes as ONNX Runtime does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.onnxruntime import InferenceSession

from .conftest import MadeOnce, make_user

CLASSES = 3
MOST = 5
LARGEST = CLASSES * MOST
SIDE = 32
OUTPUTS = ("detections", "classes", "bright")


def write_detector(path: Path) -> Path:
    """Convolutions, boxes and scores of 64 places, and what a suppression keeps of them; and places that are bright.

    The indices that are kept are used as PyTorch exports it: one by one, as coordinates, and shapes are computed.
    """
    draw = np.random.default_rng(5).standard_normal
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{kind}_{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def constant(value: Any, dtype: Any = np.int64) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"constant_{len(weights)}"))
        return weights[-1].name

    def rows(image: str, channels: int) -> str:
        head = add("Conv", image, constant(draw((channels, 16, 1, 1)), np.float32))
        return add("Transpose", add("Reshape", head, constant([1, channels, -1])), perm=[0, 2, 1])

    image = "image"
    for channels in (3, 16):
        weight = constant(draw((16, channels, 3, 3)) / np.sqrt(9 * channels), np.float32)
        image = add("Relu", add("Conv", image, weight, pads=[1] * 4, strides=[2] * 2))
    boxes = add("Sigmoid", rows(image, 4))
    scores = add("Transpose", add("Sigmoid", rows(image, CLASSES)), perm=[0, 2, 1])
    limits = [constant([MOST]), constant([0.3], np.float32), constant([0.8], np.float32)]
    kept = add("NonMaxSuppression", boxes, scores, *limits)
    batch, label, box = (add("Gather", kept, constant(column), axis=1) for column in range(3))
    columns = [add("Unsqueeze", item, constant([1])) for item in (batch, box)]
    picked = add("GatherND", boxes, add("Concat", *columns, axis=1))
    flat = add("Reshape", scores, constant([-1]))
    place = add("Add", add("Mul", label, constant(SIDE * SIDE // 16)), box)
    score = add("Reshape", add("Gather", flat, place), add("Concat", add("Shape", place), constant([1]), axis=0))
    nodes.append(helper.make_node("Concat", [picked, score], [OUTPUTS[0]], axis=1))
    nodes.append(helper.make_node("Cast", [label], [OUTPUTS[1]], to=TensorProto.INT32))
    bright = add("NonZero", add("Greater", add("ReduceMax", image, axes=[1], keepdims=0), constant(1.5, np.float32)))
    nodes.append(helper.make_node("Transpose", [bright], [OUTPUTS[2]]))
    given = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIDE, SIDE])]
    types = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(OUTPUTS, types, strict=True)]
    graph = helper.make_graph(nodes, "detector", given, made, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def images() -> list[np.ndarray]:
    """Two images, and one of which nothing is kept."""
    draw = np.random.default_rng(2).random
    return [draw((1, 3, SIDE, SIDE), np.float32) * scale for scale in (np.float32(1), np.float32(3), np.float32(0))]


def make(root: Path) -> None:
    user = make_user(root)
    user.settle("contenders = 1\n")
    few = ("--trials", 2, "--trials-per-round", 1, "--precision", "fp32", "--quiet")
    user.ok("submit", write_detector(root / "detector.onnx"), *few)
    user.ok("daemon", "run", "--drain")
    (root / "said.txt").write_text(user.ok("export", "last", "--quick", "-o", root / "lib"))


@pytest.fixture(scope="module")
def exported(made_once: MadeOnce) -> Path:
    """A folder with the library, and what its export said."""
    return made_once("counted-rows", make)


def expected(root: Path, image: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(root / "detector.onnx"), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, {"image": image})
    return outputs


def close(ours: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    for own, other in zip(ours, right, strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_as_many_rows_come_as_there_are(exported: Path) -> None:
    model = autotune.load(exported / "lib")
    counts = set()
    for image in images():
        right = expected(exported, image)
        close(model(image), right)
        counts.add(len(right[0]))
    assert len(counts) == len(images()) and min(counts) == 0


def test_the_report_has_the_largest_size_and_the_count(exported: Path) -> None:
    report = json.loads((exported / "lib" / "report.json").read_text())
    assert [item["shape"] for item in report["outputs"]] == [[LARGEST, 5], [LARGEST], [64, 3]]
    assert report["padding"]["outputs"] == [["detections_count", ""], ["detections_count"], ["bright_count", ""]]
    assert report["padding"]["counts"] == ["detections_count", "bright_count"]


def test_a_session_cuts_them_and_names_the_dimension(exported: Path) -> None:
    session = InferenceSession(str(exported / "lib"))
    shapes = [item.shape for item in session.get_outputs()]
    assert shapes == [["detections_count", 5], ["detections_count"], ["bright_count", 3]]
    for image in images():
        close(session.run(["classes"], {"image": image}), expected(exported, image)[1:2])


def test_the_script_cuts_them(exported: Path, tmp_path: Path) -> None:
    image = images()[0]
    np.savez(tmp_path / "image.npz", image=image)
    command = [sys.executable, str(exported / "lib" / "run.py"), str(tmp_path / "image.npz")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    shapes = [line.partition(")")[0] + ")" for line in lines]
    assert shapes == [str(output.shape) for output in expected(exported, image)]


OWN = """
#include "autotune.h"
#include <cstdio>

int main(int, char** argv) {
  autotune::Model net(argv[1]);
  const std::vector<float> image(3 * 32 * 32, 1.0f);
  for (const autotune::Output& output : net.run({autotune::input(image, {1, 3, 32, 32})}))
    std::printf("%s %s\\n", output.name.c_str(), autotune::text(output.shape).c_str());
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_a_program_in_cpp_cuts_them(exported: Path, tmp_path: Path) -> None:
    program = shutil.copytree(exported / "lib", tmp_path / "lib") / "cpp"
    (program / "main.cc").write_text(OWN)
    site = Path(tvm_ffi.__file__).parents[1]
    for words in (["-B", tmp_path, "-S", program, f"-DTVM_SITE={site}"], ["--build", tmp_path]):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [tmp_path / "main", exported / "lib" / "model.so"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    right = expected(exported, np.ones((1, 3, SIDE, SIDE), np.float32))
    sizes = ["x".join(map(str, output.shape)) for output in right]
    assert lines == [f"{name} {size}" for name, size in zip(OUTPUTS, sizes, strict=True)]
