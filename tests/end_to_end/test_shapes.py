"""One job tunes a model for several shapes, and its export runs the entry for the inputs that it gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.errors import BadInput
from autotune.storage.confirmation import read_confirmation
from autotune.storage.job_files import read_spec

from .conftest import MadeOnce, User, make_user


def write_model(path: Path) -> Path:
    """A model with a product and a look-up that depend on the batch, and a product that does not."""
    draw = np.random.default_rng(1).standard_normal
    weights = {
        name: numpy_helper.from_array(draw((rows, 64)).astype(np.float32), name)
        for name, rows in (("w", 48), ("v", 32), ("table", 7))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("MatMul", ["c", "v"], ["cv"]),
        helper.make_node("Relu", ["cv"], ["limited"]),
        helper.make_node("Add", ["xw", "limited"], ["sum"]),
        helper.make_node("Gather", ["table", "ids"], ["found"]),
        helper.make_node("Add", ["sum", "found"], ["y"]),
    ]
    shapes = {"x": ["batch", 48], "c": [4, 32], "y": None}
    x, c, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])
    graph = helper.make_graph(nodes, "net", [x, c, ids], [y], list(weights.values()))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def inputs(batch: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(batch).standard_normal
    ids = np.arange(batch) + 3
    return {"x": draw((batch, 48)).astype(np.float32), "c": draw((4, 32)).astype(np.float32), "ids": ids}


@pytest.fixture(scope="module")
def several(made_once: MadeOnce) -> User:
    """A workspace with a tuned job for batches of 1 and 4, exported to `lib`."""

    def make(root: Path) -> None:
        user = make_user(root)
        user.settle("contenders = 1\n")  # the last section of the file is [export]
        words = ("--dim", "batch=1,4", "--trials", 4, "--trials-per-round", 1)
        user.ok("submit", write_model(root / "net.onnx"), *words)
        user.ok("daemon", "run", "--drain")
        user.ok("export", "last", "-o", root / "lib")

    return User(made_once("several", make))


@pytest.fixture
def exported(several: User) -> autotune.Exported:
    return autotune.Exported.open(several.root / "lib")


def expected(several: User, batch: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(several.root / "net.onnx"), providers=["CPUExecutionProvider"])
    output: np.ndarray = session.run(None, inputs(batch))[0]
    return output


def test_a_task_of_both_is_tuned_once(several: User) -> None:
    spec = read_spec(autotune.open_job("last", several.root).paths)
    assert [entry.name for entry in spec.entries] == ["batch=1", "batch=4"]
    weights = list(zip(*(entry.weights for entry in spec.entries), strict=True))
    assert (1, 1) in weights and {(1, 0), (0, 1)} <= set(weights)
    assert spec.tasks[weights.index((1, 1))].weight == 2
    (job,) = several.status()
    assert len(job["entries"]) == 2 and all(entry["latency_ms"] > 0 for entry in job["entries"])


def test_every_entry_is_verified_and_timed(exported: autotune.Exported) -> None:
    report = exported.report
    assert [entry["name"] for entry in report["entries"]] == ["batch=1", "batch=4"]
    for entry, batch in zip(report["entries"], (1, 4), strict=True):
        assert entry["inputs"][0]["shape"] == [batch, 48]
        assert entry["largest_relative_error"] <= report["tolerance"]
        assert set(entry["latency"]) == {"tuned_ms", "onnxruntime_ms"}
    assert report["inputs"] == report["entries"][0]["inputs"] and report["latency"] == report["entries"][0]["latency"]


def test_a_loaded_model_runs_the_entry_that_fits(several: User, exported: autotune.Exported) -> None:
    model = exported.load()
    for batch in (4, 1):
        np.testing.assert_allclose(model(**inputs(batch)), expected(several, batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match=r"^no entry for x of 3x48: this export has 1x48, 4x48$"):
        model(**inputs(3))


@pytest.fixture
def script(exported: autotune.Exported) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `run.py`."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(exported.folder / "run.py"), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("batch", [1, 4])
def test_an_index_that_its_table_lacks_is_refused(
    exported: autotune.Exported, script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, batch: int
) -> None:
    arrays = inputs(batch)
    arrays["ids"][0] = 7
    np.savez(tmp_path / "outside.npz", **arrays)
    says = "input 'ids' has the index 7; its table has 7 rows, counted from 0"
    with pytest.raises(BadInput, match=f"^{says}$"):
        exported.load()(**arrays)
    refused = script(tmp_path / "outside.npz")
    assert (refused.returncode, refused.stderr) == (1, f"run.py: {says}\n")
    header = (exported.folder / "cpp" / "model.h").read_text()
    assert f'{{"ids", {{{batch}}}, "int64", 7}}' in header


def test_the_script_runs_the_entry_that_fits(
    several: User,
    exported: autotune.Exported,
    script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    for batch in (3, 4):
        np.savez(tmp_path / f"{batch}.npz", **inputs(batch))
    refused = script(tmp_path / "3.npz")
    assert (refused.returncode, refused.stderr) == (1, "run.py: no entry for x of 3x48: this export has 1x48, 4x48\n")
    done = script(tmp_path / "4.npz")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"(4, 64) float32 {exported.load()(**inputs(4)).ravel()[:4]}\n"
    assert script().stdout.split("\n")[0::2][:2] == ["batch=1", "batch=4"]


def test_a_dry_run_shows_the_tasks_of_all(several: User) -> None:
    preview = json.loads(several.ok("submit", several.root / "net.onnx", "--dim", "batch=1,4", "--dry-run", "--json"))
    assert len(preview["entries"]) == 2 and max(task["weight"] for task in preview["tasks"]) == 2
    refused = several.run("submit", several.root / "net.onnx", "--dim", f"batch={','.join(map(str, range(1, 18)))}")
    assert refused.returncode == 2 and "17 combinations of shapes; a job takes 16 at most" in refused.stderr


@pytest.mark.slow
def test_a_level_is_met_when_every_entry_is_as_fast(several: User) -> None:
    words = ("--dim", "batch=1,4", "--stop-at", "1s", "--name", "fast", "--quiet")
    several.ok("submit", several.root / "net.onnx", *words)
    several.ok("daemon", "run", "--drain")
    shown = several.status()[-1]
    assert (shown["state"], shown["name"]) == ("done", "fast") and shown["reason"].startswith("target latency reached")
    paths = autotune.open_job("fast", several.root).paths
    confirmed = read_confirmation(paths)
    assert confirmed is not None and len(confirmed.times_ms) == 5
