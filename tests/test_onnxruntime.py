"""A program that imports `autotune.onnxruntime` runs the library of its model, and ONNX Runtime for all else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import autotune.onnxruntime as door
from autotune.errors import BadInput, BadState
from autotune.onnxruntime import InferenceSession, SessionOptions
from autotune.storage.export_registry import register, registered
from autotune.storage.model_digest import digest_of

from .exported_library import BY_LIBRARY, BY_MODEL, write_library, write_model, write_report

X = np.arange(8, dtype=np.float32).reshape(1, 8)
FEED = {"x": X, "rate": np.array(16000, np.int64)}
GIVES_AWAY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(scope="session")
def compiled(made_once: Callable[..., Path]) -> Path:
    return made_once("door", lambda folder: write_library(folder / "lib"))


@pytest.fixture
def model(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with its library beside it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(door, "_said", set())
    shutil.copytree(compiled / "lib", tmp_path / "lib")
    path = write_model(tmp_path / "model.onnx")
    write_report(tmp_path / "lib", path)
    return path


def factor(session: Any, feed: dict[str, Any] | None = None) -> float:
    """What the session multiplies its input by: that of the library, or of the model."""
    y, _ = session.run(None, feed or FEED)
    return float(y.ravel()[1] / (feed or FEED)["x"].ravel()[1])


def test_the_library_beside_a_model_runs_and_a_line_says_so_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert factor(InferenceSession(str(model))) == BY_LIBRARY
    assert factor(InferenceSession(model)) == BY_LIBRARY
    said = capsys.readouterr().err
    assert said == f"autotune: {model} runs in the library in {model.parent / 'lib'} (1 thread)\n"


def test_the_outputs_that_are_asked_for_come_in_their_order(model: Path) -> None:
    z, y = InferenceSession(model).run(["z", "y"], FEED)
    assert np.array_equal(z, -X) and np.array_equal(y, BY_LIBRARY * X)
    assert np.array_equal(InferenceSession(model).run(["z"], FEED)[0], -X)


def test_the_content_of_a_model_finds_the_library_in_the_registry(model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    assert factor(InferenceSession(content)) == BY_MODEL
    register(tmp_path / "lib", digest_of(model))
    assert factor(InferenceSession(content)) == BY_LIBRARY
    elsewhere = shutil.copy(model, tmp_path / "data")
    assert factor(InferenceSession(elsewhere)) == BY_LIBRARY


def test_a_registry_that_others_may_write_to_is_not_read(model: Path, tmp_path: Path) -> None:
    register(tmp_path / "lib", digest_of(model))
    size = model.stat().st_size
    assert registered(size) == [tmp_path / "lib"]
    (tmp_path / "data/autotune/libraries").chmod(0o777)
    assert registered(size) == []


def test_a_folder_is_registered_for_its_last_model_only(model: Path, tmp_path: Path) -> None:
    register(tmp_path / "lib", digest_of(model))
    other = tmp_path / "other.onnx"
    other.write_bytes(b"longer than nothing")
    register(tmp_path / "lib", digest_of(other))
    assert registered(model.stat().st_size) == [] and registered(19) == [tmp_path / "lib"]


def test_a_model_of_which_one_byte_changed_does_not_get_the_library(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = model.read_bytes()
    model.write_bytes(content.replace(b"net", b"met"))
    session = InferenceSession(model)
    assert factor(session) == BY_MODEL
    assert session.chosen == "ONNX Runtime: no library was exported for it"
    assert f"{model} runs in ONNX Runtime" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cpu": "Another CPU"}, "it was tuned on Another CPU, and this is"),
        ({"cpu": None}, "not for the CPU of this machine"),
        ({"target": {"kind": "cuda"}}, "not for the CPU of this machine"),
        ({"instructions": ["no_such_instructions"]}, "it needs no_such_instructions"),
        ({"threads": 4096}, "it is for 4096 threads, and this process may use"),
    ],
)
def test_a_library_for_another_machine_is_not_used(model: Path, changed: dict[str, Any], why: str) -> None:
    write_report(model.parent / "lib", model, **changed)
    session = InferenceSession(model)
    assert factor(session) == BY_MODEL and why in session.chosen


def test_a_library_for_another_number_of_threads_than_is_asked_for_is_not_used(model: Path) -> None:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    assert factor(InferenceSession(model, options)) == BY_LIBRARY
    options.intra_op_num_threads = 2
    session = InferenceSession(model, options)
    assert factor(session) == BY_MODEL and "it is for 1 threads, and 2 are asked for" in session.chosen


@pytest.mark.parametrize("name", ["lib", "lib/model.so", "lib/report.json", "."])
def test_a_library_that_others_could_have_put_there_is_not_loaded(model: Path, name: str) -> None:
    (model.parent / name).chmod(0o777)
    session = InferenceSession(model)
    assert factor(session) == BY_MODEL and "others may write to" in session.chosen


@GIVES_AWAY
@pytest.mark.parametrize("name", ["lib", "lib/model.so", "lib/report.json", "."])
def test_a_library_of_another_user_is_not_loaded(model: Path, name: str) -> None:
    os.chown(model.parent / name, 12345, 12345)
    session = InferenceSession(model)
    assert factor(session) == BY_MODEL and "belongs to user 12345" in session.chosen


def test_a_damaged_library_is_not_loaded(model: Path) -> None:
    library = model.parent / "lib/model.so"
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    session = InferenceSession(model)
    assert factor(session) == BY_MODEL and "its code is not what was written" in session.chosen


def test_other_shapes_run_in_onnx_runtime_and_a_line_says_so_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = InferenceSession(model)
    assert factor(session, {**FEED, "x": np.repeat(X, 2, axis=0)}) == BY_MODEL
    assert factor(session, {**FEED, "x": np.repeat(X, 3, axis=0)}) == BY_MODEL
    assert factor(session) == BY_LIBRARY
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].endswith("input 'x' has shape (2, 8); the model was compiled for (1, 8)")


def test_another_value_of_an_input_that_is_a_constant_in_the_library_runs_in_onnx_runtime(model: Path) -> None:
    assert factor(InferenceSession(model), {"x": X, "rate": np.array(8000, np.int64)}) == BY_MODEL


@pytest.mark.parametrize(
    ("names", "feed"),
    [
        (["w"], FEED),
        (None, {"rate": FEED["rate"]}),
        (None, {**FEED, "other": X}),
        (None, {**FEED, "x": X.astype(np.float64)}),
        (None, {**FEED, "x": X[0]}),
    ],
)
def test_what_is_wrong_is_said_as_onnx_runtime_says_it(model: Path, names: list[str] | None, feed: Any) -> None:
    with pytest.raises(Exception) as ours:
        InferenceSession(model).run(names, feed)
    with pytest.raises(Exception) as theirs:
        onnxruntime.InferenceSession(model).run(names, feed)
    assert type(ours.value) is type(theirs.value) and str(ours.value) == str(theirs.value)


def test_inputs_outputs_and_all_else_are_those_of_onnx_runtime(model: Path) -> None:
    ours = InferenceSession(model)
    theirs = onnxruntime.InferenceSession(model)
    for get in ("get_inputs", "get_outputs"):
        assert [str(item) for item in getattr(ours, get)()] == [str(item) for item in getattr(theirs, get)()]
    assert ours.get_providers() == theirs.get_providers()
    assert ours.get_modelmeta().graph_name == "net"
    assert isinstance(ours, onnxruntime.InferenceSession) and factor(ours) == BY_LIBRARY
    with pytest.raises(AttributeError, match="no_such_method"):
        ours.no_such_method()


def test_values_of_onnx_runtime_go_in_and_come_out(model: Path) -> None:
    session = InferenceSession(model)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in FEED.items()}
    (y,) = session.run_with_ort_values(["y"], values)
    assert np.array_equal(y.numpy(), BY_LIBRARY * X)
    y, _ = session.run(None, values)
    assert np.array_equal(y, BY_LIBRARY * X)


def test_a_binding_is_run_by_onnx_runtime(model: Path) -> None:
    session = InferenceSession(model)
    binding = session.io_binding()
    for name, array in FEED.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], BY_MODEL * X)


def test_options_that_change_what_is_computed_keep_the_library_out(model: Path) -> None:
    weights = SessionOptions()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(5, np.float32))
    weights.add_initializer("two", value)
    session = InferenceSession(model, weights)
    assert session.chosen == "ONNX Runtime: add_initializer was called"
    profiled = SessionOptions()
    profiled.enable_profiling = True
    profiled.profile_file_prefix = str(model.parent / "profile")
    assert InferenceSession(model, profiled).chosen == "ONNX Runtime: enable_profiling is set"


def test_a_provider_for_a_gpu_that_is_there_keeps_the_library_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert door._needs_onnxruntime(None, wanted) == ""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: wanted)
    assert door._needs_onnxruntime(None, wanted) == "CUDAExecutionProvider is asked for"
    assert door._needs_onnxruntime(None, ["CPUExecutionProvider"]) == ""


def test_a_model_that_changed_under_an_open_session_is_not_opened(model: Path) -> None:
    session = InferenceSession(model)
    model.write_bytes(model.read_bytes().replace(b"net", b"met"))
    assert factor(session) == BY_LIBRARY
    with pytest.raises(BadState, match="was changed since this session was opened"):
        session.run(None, {**FEED, "x": np.repeat(X, 2, axis=0)})


def test_a_folder_is_a_session_of_its_library_alone(model: Path) -> None:
    session = InferenceSession(model.parent / "lib")
    assert factor(session, {"x": X}) == BY_LIBRARY
    assert [str(item) for item in session.get_inputs()] == ["NodeArg(name='x', type='tensor(float)', shape=[1, 8])"]
    assert [item.name for item in session.get_outputs()] == ["y", "z"]
    with pytest.raises(BadInput, match=r"has shape \(2, 8\); the model was compiled for \(1, 8\)"):
        session.run(None, {"x": np.repeat(X, 2, axis=0)})
    with pytest.raises(BadState, match="is a library, without the model"):
        session.get_modelmeta()
    with pytest.raises(BadInput, match="holds no exported model"):
        InferenceSession(model.parent)


def test_a_model_that_cannot_be_opened_is_said_as_onnx_runtime_says_it(tmp_path: Path) -> None:
    with pytest.raises(Exception) as ours:
        InferenceSession(str(tmp_path / "none.onnx"))
    with pytest.raises(Exception) as theirs:
        onnxruntime.InferenceSession(str(tmp_path / "none.onnx"))
    assert str(ours.value) == str(theirs.value)


def test_other_names_of_the_module_are_those_of_onnx_runtime() -> None:
    assert door.GraphOptimizationLevel is onnxruntime.GraphOptimizationLevel
    assert door.get_available_providers() == onnxruntime.get_available_providers()
    assert "RunOptions" in dir(door) and issubclass(SessionOptions, onnxruntime.SessionOptions)


def test_a_library_runs_without_loading_the_compiler_of_tvm_or_torch(model: Path) -> None:
    program = f"""
import sys, numpy
from autotune.onnxruntime import InferenceSession
session = InferenceSession({str(model)!r})
session.run(None, {{"x": numpy.ones((1, 8), numpy.float32), "rate": numpy.array(16000)}})
assert "tvm" not in sys.modules and "torch" not in sys.modules
print(session.chosen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("the library in"), done.stderr
