"""An open batch is 1, and the user is told; what else is open is advised, and taken with `--yes` or a yes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from autotune.cli import _run
from autotune.commands.submit.submit import batch_lines
from autotune.storage.formats import INPUTS_VERSION, OpenBatch
from autotune.storage.job_files import read_spec
from autotune.storage.paths import Workspace

BATCH = OpenBatch("x", "N", (1, 3, 8))
NAMELESS = OpenBatch("z", "", (1,))


def write_model(path: Path, shape: list[object]) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def answered(words: list[str], workspace: Path, answer: str) -> tuple[int, str]:
    """Run a command line on a terminal, type an answer, and return the exit code and what the terminal showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace), *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    return process.wait(), shown.decode()


def test_the_line_says_how_to_give_another_batch() -> None:
    assert batch_lines([]) == []
    assert batch_lines([BATCH]) == ["the batch of 'x' is open and is taken as 1; for one of 8, say, add --dim N=8"]
    (line,) = batch_lines([BATCH, NAMELESS])
    assert line.endswith("add --dim N=8 --input z=8")
    (line,) = batch_lines([OpenBatch("a b", "", (1, 3, 8))])
    assert line.endswith("add --input 'a b=8x3x8'")


def test_an_open_batch_is_kept_in_the_spec_as_1(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(workspace.root / "m.onnx", ["N", 3, 8])
    assert _run(["--workspace", str(workspace.root), "submit", str(model)]) == 0
    assert "the batch of 'x' is open and is taken as 1" in capsys.readouterr().err
    spec = read_spec(workspace.job_list()[0])
    assert [item.shape for item in spec.inputs] == [(1, 3, 8)]
    assert spec.open_batches == (BATCH,)
    assert spec.inputs_version == INPUTS_VERSION


def test_a_batch_that_is_open_beside_several_sizes_is_asked_for_as_if_it_had_been_given(workspace: Workspace) -> None:
    model = write_model(workspace.root / "m.onnx", ["N", 3, "width"])
    assert _run(["--workspace", str(workspace.root), "submit", str(model), "--dim", "width=8,16"]) == 0
    spec = read_spec(workspace.job_list()[0])
    assert [entry.asked.dims for entry in spec.entries] == [{"N": 1, "width": 8}, {"N": 1, "width": 16}]


def test_other_open_sizes_are_refused_with_advice_that_yes_takes(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(workspace.root / "m.onnx", ["N", "frames", 8])
    words = ["--workspace", str(workspace.root), "submit", str(model)]
    assert _run(words) == 2
    assert "add its shape, such as: --input x=1x128x8" in capsys.readouterr().err
    assert not workspace.job_list()
    assert _run([*words, "--yes"]) == 0
    assert "taken as advised: --input x=1x128x8" in capsys.readouterr().err
    assert [item.shape for item in read_spec(workspace.job_list()[0]).inputs] == [(1, 128, 8)]


@pytest.mark.parametrize(("answer", "code"), [("n\n", 2), ("\n", 0)])
def test_on_a_terminal_the_advice_is_offered(workspace: Workspace, answer: str, code: int) -> None:
    model = write_model(workspace.root / "m.onnx", ["N", "frames", 8])
    ended, shown = answered(["submit", str(model)], workspace.root, answer)
    assert ended == code and shown.count("such as: --input x=1x128x8") == 1 and "take this? [Y/n]" in shown
    assert len(workspace.job_list()) == (code == 0)
