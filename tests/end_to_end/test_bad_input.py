"""Bad input: one clear line on standard error, exit 2, the queue untouched."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.cli import _run
from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.read import read_model


def model(nodes, inputs=(1, 4), opset=17, initializers=()) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=list(initializers))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my.domain", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return proto.SerializeToString()


RELU = helper.make_node("Relu", ["x"], ["y"])
RESHAPE = helper.make_node("Reshape", ["x", "shape"], ["y"])
SHAPE = numpy_helper.from_array(np.array([3, 5], np.int64), "shape")


BAD_MODELS = {
    "text": (b"this is no model\n", "is not an ONNX file"),
    "zeros": (bytes(4096), "is not an ONNX file"),
    "no operators": (model([]), "no operators"),
    "unknown operator": (model([helper.make_node("Frobnicate", ["x"], ["y"])]), "Frobnicate"),
    "foreign operator": (model([helper.make_node("Swirl", ["x"], ["y"], domain="my.domain")]), "Swirl"),
    "dynamic": (model([RELU], inputs=("rows", "columns")), "--input x=|--dim"),
    "impossible shape": (model([RESHAPE], initializers=[SHAPE]), "Reshape|reshape"),
    "missing input": (model([helper.make_node("Add", ["x", "nowhere"], ["y"])]), "nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model(tmp_path, name):
    data, expected = BAD_MODELS[name]
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_model(path, {})
    said = str(caught.value)
    assert re.search(f"bad.onnx.*({expected})|({expected}).*bad.onnx", said) and "\n" not in said


def test_an_empty_and_a_truncated_model_on_the_command_line(user, refused, models, tmp_path):
    (tmp_path / "empty.onnx").touch()
    refused(["submit", tmp_path / "empty.onnx"], "empty.onnx is empty")
    path = tmp_path / "cut.onnx"
    path.write_bytes((models / "tiny_cnn.onnx").read_bytes()[:4000])
    done = user.run("submit", path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "cut.onnx is not an ONNX file, or is cut short" in done.stderr
    assert not list((user.root / "jobs").glob("[0-9]*"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["submit", "nowhere.onnx"], "nowhere.onnx: No such file"),
        (["submit", "/"], "is a folder"),
        (["submit", "MODEL", "--target", "abacus"], "abacus"),
        (["submit", "MODEL", "--target", "{broken"], "JSON"),
        (["submit", "MODEL", "--target", '{"kind": "llvm", "nonsense": 1}'], "nonsense"),
        (["submit", "MODEL", "--input", "input"], "NAME=1x3x224x224"),
        (["submit", "MODEL", "--input", "other=1x3x16x16"], "no input 'other'; its inputs: input"),
        (["submit", "MODEL", "--name", "../../etc"], "--name"),
        (["submit", "MODEL", "--name", "all"], "would mean other jobs"),
        (["submit", "MODEL", "--name", "3-5"], "would mean other jobs"),
        (["submit", "MODEL", "--trials", "many"], "--trials"),
        (["submit"], "MODEL|model"),
        (["frobnicate"], "frobnicate"),
        (["cancel", "7"], "no job '7'.*queue of .* is empty"),
        (["export", "last", "--output", "out"], "no job 'last'"),
        (["wait", "resnet"], "no job 'resnet'"),
        (["daemon", "run", "--until", "25:99"], "--until"),
        (["daemon", "run", "--until", "2020-01-01T07:00"], "--until '2020-01-01T07:00' is past; give a later one"),
        (["clean", "--older-than", "soon"], "--older-than"),
    ],
)
def test_bad_words(refused, models, words, expected):
    refused([models / "tiny_cnn.onnx" if word == "MODEL" else word for word in words], expected)


def test_a_name_that_is_taken(user, refused, space):
    user.ok("submit", space, "--name", "mine")
    refused(["submit", space, "--name", "mine"], "named 'mine' already", jobs=1)
    assert user.ok("submit", space, "-q") == "2\n"
    assert user.ok("submit", space, "-q") == "3\n"
    assert [job["name"] for job in user.status()] == ["mine", "space", "space-2"]


def test_a_setting_that_does_not_exist_is_named_with_its_line(user, refused, models):
    user.settle("[search]\n# a comment\nstratgey = 3\n")
    said = refused(["submit", models / "mlp.onnx"], "autotune.toml:13: unknown key 'stratgey'")
    assert "strategy" in said


def test_a_workspace_that_is_not_there(user):
    done = user.run("status", "--workspace", "/no where")
    missing = "autotune: there is no workspace /no where; make the folder with: mkdir -p '/no where'\n"
    assert (done.returncode, done.stderr) == (2, missing)
    done = user.run("status", "--workspace", "/etc/passwd")
    assert (done.returncode, done.stderr) == (2, "autotune: the workspace /etc/passwd is not a folder\n")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/sys/kernel").exists(), reason="permissions do not bind root")
def test_a_disk_that_cannot_be_written(user, space):
    """A file where a folder must be: the same error path as no permission, and it binds root too."""
    (user.root / "jobs").write_text("in the way")
    done = user.run("submit", space)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "jobs" in done.stderr


def test_a_dry_run_writes_nothing(user, models):
    given = json.loads(user.ok("submit", models / "tiny_cnn.onnx", "--dry-run", "--json"))
    assert "conv2d" in given["tasks"][0]["name"]
    assert "nothing to tune" in user.ok("submit", models / "tiny_cnn.onnx", "--dry-run")
    assert not (user.root / "jobs").exists()


def test_a_model_whose_own_runtime_is_not_of_one_mind_is_refused_with_what_to_do(user, tmp_path):
    """Its answers are what is left of columns that are equal but for the last bits."""
    column = np.random.default_rng(0).standard_normal((64, 1), np.float32) / 16
    nearly = np.repeat(column, 64, 1) * (1 + np.float32(6e-8) * np.arange(64, dtype=np.float32) / 32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Tanh", ["z"], ["t"])]
    nodes += [helper.make_node("MatMul", ["t", "apart"], ["y"])]
    apart = np.eye(64, dtype=np.float32) - np.roll(np.eye(64, dtype=np.float32), 1, axis=0)
    weights = [numpy_helper.from_array(nearly, "w"), numpy_helper.from_array(apart, "apart")]
    path = tmp_path / "close.onnx"
    path.write_bytes(model(nodes, inputs=(64, 64), initializers=weights))
    told = user.run("submit", path, "--trials", 4).stderr
    assert "its own runtime is" in told
    done = user.run("export", "close", "-o", user.root / "out", "--quick")
    assert done.returncode == 1
    assert "ONNX Runtime itself is up to" in done.stderr.splitlines()[-1]
    assert "give others with --inputs" in done.stderr.splitlines()[-1]


@pytest.fixture
def refused(user, capsys):
    """Runs a command line that must be refused in one line, which it returns, and must leave so many jobs.

    Not what TVM itself writes to the descriptor counts, which it does when it forgets a model of another test.
    """

    def run(words, expected: str, jobs: int = 0) -> str:
        assert _run(["--workspace", str(user.root), *map(str, words)]) == 2
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1, said
        assert re.search(expected, said.err), said.err
        left = [path for path in (user.root / "jobs").glob("*") if path.is_dir()]
        assert len(left) == jobs, left
        return said.err

    return run


def test_the_models_here_are_what_they_say() -> None:
    """A bad model that the ONNX library itself refuses to write would test nothing."""
    assert onnx.load_model_from_string(BAD_MODELS["unknown operator"][0]).graph.node[0].op_type == "Frobnicate"
