"""A library takes all sizes up to the largest tuned one, where padding does not change what its model computes."""

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
from autotune.errors import BadInput
from autotune.onnxruntime import InferenceSession

from .conftest import SCRIPTS, MadeOnce, make_user

WIDTH = 16
WORDS = 30
LONGEST = 16


class Encoder:
    """A model of the form of BERT, with one layer of attention. Batch and sequence are open.

    It adds tables of words and positions; or, without a mask, has the mean of all positions as an output.
    """

    def __init__(self) -> None:
        self._draw = np.random.default_rng(3).standard_normal
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._draw(shape) / np.sqrt(shape[0]), np.float32)

    def words(self) -> str:
        """The rows of a table for `input_ids`, and those of another for their positions."""
        length = self.add("Gather", self.add("Shape", "input_ids"), self.constant([1]))
        positions = self.add("Slice", self.weight(LONGEST, WIDTH), self.constant([0]), length)
        return self.add("Add", self.add("Gather", self.weight(WORDS, WIDTH), "input_ids"), positions)

    def attention(self, rows: str, mask: str) -> str:
        """Each row becomes a mean of those that its mask leaves, in one head without weights: less is compiled."""
        number = self.add("Cast", self.add("Unsqueeze", mask, self.constant([1])), to=TensorProto.FLOAT)
        less = self.add("Sub", self.constant(1, np.float32), number)
        far = self.add("Mul", less, self.constant(-10_000, np.float32))
        products = self.add("MatMul", rows, self.add("Transpose", rows, perm=[0, 2, 1]))
        return self.add("MatMul", self.add("Softmax", self.add("Add", products, far), axis=-1), rows)

    def write(self, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Path:
        given = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in inputs]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", given, made, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
        return path


def write_masked(path: Path) -> Path:
    """A model whose outputs are all positions, and the first one."""
    net = Encoder()
    rows = net.attention(net.words(), "attention_mask")
    first = net.add("Gather", rows, net.constant(0), axis=1)
    return net.write(path, ["input_ids", "attention_mask"], [rows, first])


def write_mean(path: Path) -> Path:
    """A model whose output is the mean of all positions."""
    net = Encoder()
    mean = net.add("ReduceMean", net.words(), axes=[1], keepdims=0)
    return net.write(path, ["input_ids"], [mean])


def inputs(batch: int, length: int) -> dict[str, np.ndarray]:
    """Words, of which the last is masked in the first row."""
    rng = np.random.default_rng(length)
    mask = np.ones((batch, length), np.int64)
    mask[0, 1:][-1:] = 0
    return {"input_ids": rng.integers(0, WORDS, (batch, length)), "attention_mask": mask}


def make(root: Path) -> None:
    user = make_user(root)
    user.settle("contenders = 1\n")
    few = ("--trials", 2, "--trials-per-round", 1, "--quiet")
    user.ok("submit", write_masked(root / "masked.onnx"), "--dim", "batch=1,3", "--dim", "sequence=4,16", *few)
    user.ok("submit", write_mean(root / "mean.onnx"), "--dim", "batch=1,3", "--dim", "sequence=4,8", *few)
    for name in ("masked", "mean"):
        (root / f"{name}.txt").write_text(user.ok("export", name, "--quick", "-o", root / name))


@pytest.fixture(scope="module")
def exported(made_once: MadeOnce) -> Path:
    """A folder with the libraries of both models, and what their exports said."""
    return made_once("open-sizes", make)


def expected(model: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, feed)
    return outputs


def close(ours: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> None:
    for own, other in zip(ours, right, strict=True):
        assert own.flags.c_contiguous
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_all_sizes_up_to_the_largest_are_computed_right(exported: Path) -> None:
    model = autotune.load(exported / "masked")
    for batch in (1, 2, 3):
        for length in range(1, LONGEST + 1):
            feed = inputs(batch, length)
            close(model(**feed), expected(exported / "masked.onnx", feed))


def test_the_export_says_which_sizes_there_are(exported: Path) -> None:
    said = (exported / "masked.txt").read_text()
    assert "batch may be 1 to 3: inputs are padded with zeros to the next of 1, 3\n" in said
    assert "sequence may be 1 to 16: inputs are padded with zeros to the next of 4, 16\n" in said
    assert "verified with padding at 6 other sizes: largest relative error" in said


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (inputs(1, 17), "sequence is 17 in input_ids; this library takes 1 to 16"),
        (
            {**inputs(1, 4), "attention_mask": np.ones(4, np.int64)},
            "no entry for attention_mask of 4: this export has 1x4, 1x16, 3x4, 3x16",
        ),
    ],
)
def test_other_sizes_are_refused_in_one_line(exported: Path, feed: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(BadInput, match=f"^{says}$"):
        autotune.load(exported / "masked")(**feed)


def test_the_script_takes_them_too(exported: Path, tmp_path: Path) -> None:
    feed = inputs(2, 7)
    np.savez(tmp_path / "right.npz", **feed)
    np.savez(tmp_path / "long.npz", **inputs(1, 17))

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(exported / "masked" / "run.py"), str(tmp_path / name)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    shown = [
        f"{output.shape} {output.dtype} {output.ravel()[:4]}" for output in autotune.load(exported / "masked")(**feed)
    ]
    done = run("right.npz")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == shown
    refused = run("long.npz")
    assert refused.stderr == "run.py: sequence is 17 in input_ids; this library takes 1 to 16\n"


def test_a_session_takes_them_and_names_the_open_dimensions(exported: Path) -> None:
    session = InferenceSession(str(exported / "masked"))
    assert [item.shape for item in session.get_inputs()] == [["batch", "sequence"]] * 2
    assert [item.shape for item in session.get_outputs()] == [["batch", "sequence", WIDTH], ["batch", WIDTH]]
    feed = inputs(2, 5)
    close(session.run(None, feed), expected(exported / "masked.onnx", feed))


def test_a_model_whose_results_depend_on_padding_keeps_to_its_tuned_sizes(exported: Path) -> None:
    said = (exported / "mean.txt").read_text()
    assert "batch may be 1 to 3: inputs are padded with zeros to the next of 1, 3\n" in said
    assert "sequence has to be one of 4, 8: at sequence=1 the outputs of padded inputs differ by " in said
    model = autotune.load(exported / "mean")
    for batch, length in ((1, 4), (2, 8), (3, 4)):
        feed = {"input_ids": inputs(batch, length)["input_ids"]}
        close([model(**feed)], expected(exported / "mean.onnx", feed))
    with pytest.raises(BadInput, match=r"^no entry for input_ids of 2x5: this export has 1x4, 1x8, 3x4, 3x8$"):
        model(inputs(2, 5)["input_ids"])


def test_the_report_says_what_is_open(exported: Path) -> None:
    padding = json.loads((exported / "mean" / "report.json").read_text())["padding"]
    assert padding["inputs"] == {"input_ids": ["batch", ""]} and padding["outputs"] == [["batch", ""]]


@pytest.mark.slow
def test_two_exports_are_compared_as_users_call_them(exported: Path, tmp_path: Path) -> None:
    """The second has no entry for the inputs of the first, and pads them."""
    first = shutil.copytree(exported / "masked", tmp_path / "longer")
    report = json.loads((first / "report.json").read_text())
    report["inputs"] = [{**item, "shape": [1, 7]} for item in report["inputs"]]
    (first / "report.json").write_text(json.dumps(report))
    command = [sys.executable, SCRIPTS / "bench" / "compare_exports.py", first, exported / "masked", "--turns", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(" in 1 turns)")


OWN = """
#include "autotune.h"
#include <cstdio>

int main(int, char** argv) {
  autotune::Model net(argv[1]);
  const std::vector<int64_t> ids(17, 3), mask(17, 1);
  for (const std::vector<int64_t>& sizes : {SIZES}) {
    const autotune::Shape shape(sizes.begin(), sizes.begin() + 2), other(sizes.begin() + 2, sizes.end());
    try {
      for (const autotune::Output& output :
           net.run({autotune::input(ids.data(), shape), autotune::input(mask.data(), other)}))
        std::printf("%s %.4f\\n", autotune::text(output.shape).c_str(), output.values<float>().back());
    } catch (const std::invalid_argument& error) {
      std::printf("%s\\n", error.what());
    }
  }
}
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_a_program_in_cpp_takes_them_too(exported: Path, tmp_path: Path) -> None:
    right = [(2, 5), (1, 16), (3, 3), (1, 1)]
    wrong = [(1, 17, 1, 17), (1, 7, 1, 6)]
    sizes = [(*shape, *shape) for shape in right] + wrong
    library = shutil.copytree(exported / "masked", tmp_path / "lib")
    program = library / "cpp"
    cases = ", ".join(f"std::vector<int64_t>{{{', '.join(map(str, case))}}}" for case in sizes)
    (program / "main.cc").write_text(OWN.replace("SIZES", cases))
    site = Path(tvm_ffi.__file__).parents[1]
    for words in (["-B", tmp_path, "-S", program, f"-DTVM_SITE={site}"], ["--build", tmp_path]):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [tmp_path / "main", exported / "masked" / "model.so"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    model = autotune.load(exported / "masked")
    outputs = [output for shape in right for output in model(np.full(shape, 3), np.ones(shape, np.int64))]
    assert lines[:-2] == [f"{'x'.join(map(str, output.shape))} {output.ravel()[-1]:.4f}" for output in outputs]
    there = ", ".join(f"input_ids of {batch}x{length}" for batch in (1, 3) for length in (4, 16))
    assert lines[-2:] == [
        f"the library was compiled for other shapes: {there}",
        "the inputs disagree on sequence: 7 and 6",
    ]
