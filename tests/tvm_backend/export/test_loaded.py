"""A library computes what its model does with a scalar among its inputs, in this process and by its script."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from autotune.device_settings import BoardSettings
from autotune.errors import BadInput, DamagedFile, MachineProblem
from autotune.options import InputSpec
from autotune.schema import plain
from autotune.storage.formats import Entry
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export import loaded
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.library_file import described
from autotune.tvm_backend.export.loadable import Input
from autotune.tvm_backend.export.loaded import check_index
from autotune.tvm_backend.export.writing import script
from autotune.tvm_backend.graph.joined_modules import Joiner
from autotune.tvm_backend.isa import amx
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.kernels.build_kernel import link_shared
from autotune.tvm_backend.lowering import prepare

INPUTS = (InputSpec("x", (1, 8), "float32"), InputSpec("factor", (), "float32"))


@pytest.fixture(scope="module", params=["main", "n=1"], ids=["one set of shapes", "several"])
def entry(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, target: Any, entry: str) -> Path:
    """A library that multiplies a tensor by a scalar."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(item.name, relax.TensorType(item.shape, item.dtype)) for item in INPUTS]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(relax.op.multiply(*inputs))
        builder.emit_func_output(output)
    joined = Joiner()
    joined.add(entry, prepare(builder.get(), target))
    path = tmp_path_factory.mktemp("exported")
    executable = compile_tuned(joined.module(), [], {}, target)
    executable.export_library(str(path / "model.so"), fcompile=link_shared)
    return path


def test_a_scalar_may_be_a_number_or_an_array(folder: Path, entry: str) -> None:
    inputs = [{"name": item.name, "shape": item.shape, "dtype": item.dtype} for item in INPUTS]
    entries = [{"name": entry, "inputs": inputs}]
    model = loaded.load(folder / "model.so", {"target": {"kind": "llvm"}, "threads": 1, "entries": entries})
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert np.array_equal(model(x, 2.0), 2 * x)
    assert np.array_equal(model(x[:, ::-1], factor=np.float32(3)), 3 * x[:, ::-1])


def test_outputs_stay_as_they_are_and_belong_to_the_caller(tmp_path: Path, target: Any) -> None:
    """The model returns its input, a view of it, and a constant: none of them may be the memory of the model."""
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [given]):
        with builder.dataflow():
            constant = relax.const(np.full(3, 7, np.float32))
            fields = [given, builder.emit(relax.op.reshape(given, (3, 2))), constant]
            output = builder.emit_output(relax.Tuple(fields))
        builder.emit_func_output(output)
    executable = compile_tuned(prepare(builder.get(), target), [], {}, target)
    executable.export_library(str(tmp_path / "model.so"), fcompile=link_shared)
    inputs = [{"name": "x", "shape": [2, 3], "dtype": "float32"}]
    model = loaded.load(tmp_path / "model.so", {"target": {"kind": "llvm"}, "threads": 1, "inputs": inputs})
    first = model(np.ones((2, 3), np.float32))
    for array in first:
        array += 1
    second = model(np.zeros((2, 3), np.float32))
    assert [set(array.ravel()) for array in first] == [{2.0}, {2.0}, {8.0}]
    assert [set(array.ravel()) for array in second] == [{0.0}, {0.0}, {7.0}]


def test_the_script_runs(folder: Path, entry: str, make_job: Callable[..., JobPaths]) -> None:
    entries = () if entry == "main" else (Entry(entry, INPUTS, ()),)
    spec = replace(read_spec(make_job()), inputs=INPUTS, entries=entries)
    (folder / "run.py").write_text(script.source(spec, threads=1, rows=[{}]))
    done = subprocess.run([sys.executable, str(folder / "run.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "(1, 8) float32" in done.stdout


class OnGpu:
    """A device of CUDA, as far as a model asks."""

    type = "cuda"

    def sync(self) -> None:
        """Nothing runs."""


def test_the_thread_that_records_a_cuda_graph_lives_as_long_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[threading.Thread] = []

    def function(x: Any) -> Any:
        callers.append(threading.current_thread())
        return x

    monkeypatch.setattr("tvm.runtime.tensor", lambda array, device: _Tensor(array))
    model = loaded.LoadedModel({"main": function}, OnGpu(), {"main": [Input("x", (2,), "float32")]})
    for _ in range(2):
        passing = threading.Thread(target=model, args=(np.ones(2, np.float32),))
        passing.start()
        passing.join()
    first, second = callers
    assert first.is_alive() and not second.is_alive()


class _Tensor:
    def __init__(self, array: Any) -> None:
        self._array = array

    def numpy(self) -> Any:
        return self._array


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
@pytest.mark.parametrize("indices", [[], [0], [29, 0, 3]])
def test_an_index_of_a_row_that_the_table_has_is_let_through(indices, dtype):
    assert check_index("ids", np.array(indices, dtype), 30) is None


@pytest.mark.parametrize(
    ("indices", "outside"),
    [
        (np.array([0, 30]), 30),
        (np.array([[99], [-1]]), -1),
        (np.array([255], np.uint8), 255),
        (np.array([30.5], np.float32), 30),
    ],
)
def test_an_index_without_a_row_is_named(indices, outside):
    with pytest.raises(ValueError) as caught:
        check_index("ids", indices, 30)
    assert str(caught.value) == f"input 'ids' has the index {outside}; its table has 30 rows, counted from 0"


@pytest.fixture
def report(folder: Path, entry: str) -> dict[str, Any]:
    """What an export says of the library."""
    inputs = [{"name": item.name, "shape": list(item.shape), "dtype": item.dtype} for item in INPUTS]
    library = plain(described(folder / "model.so"))
    entries = [{"name": entry, "inputs": inputs}]
    return {"target": {"kind": "llvm"}, "threads": 1, "entries": entries, "library": library}


@pytest.mark.parametrize("named", [{"x": 0}, {"x": 0, "factor": 1}, {"factor": 1, "self": 2}])
def test_an_input_that_is_given_twice_or_unknown_is_refused(
    folder: Path, report: dict[str, Any], named: dict[str, Any]
) -> None:
    model = loaded.load(folder / "model.so", report)
    with pytest.raises(
        BadInput, match="^(input 'x' was given twice: by its place and by its name|the model has no input 'self'.*)$"
    ):
        model(np.zeros((1, 8), np.float32), **named)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("threads",), "many", "'threads' must be a whole number, not text"),
        (("threads",), 0, "'threads' must be at least 1, not 0"),
        (("threads",), None, "'threads' must be"),
        (("target",), "llvm", "'target' must be an object, not text"),
        (("target", "kind"), 7, "'target.kind' must be"),
        (("entries", 0, "name"), 3, "'entries[0].name' must be"),
        (("entries", 0, "inputs", 0, "dtype"), "float31", "'entries[0].inputs[0].dtype' must be one of bool"),
        (("entries", 0, "inputs", 0, "shape"), [-1], "at least 0, not -1"),
        (("entries", 0, "inputs", 0), {}, "'entries[0].inputs[0].name' is missing"),
        (("instructions",), "avx2", "'instructions' must be a list"),
        (("library", "bytes"), "1", "'library.bytes' must be a whole number"),
        (("library", "sha256"), "abc", "must be a SHA-256"),
        (("library", "weights"), {"first": 0, "bytes": 0}, "'library.weights.sha256' is missing"),
    ],
)
def test_a_report_that_was_edited_is_refused_in_a_line(
    folder: Path, report: dict[str, Any], place: tuple[str | int, ...], value: object, says: str
) -> None:
    part: Any = report
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(DamagedFile) as caught:
        loaded.load(folder / "model.so", report)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'report.json'} is damaged: ") and message.endswith("; export the job again")
    assert says in message and "\n" not in message


def test_a_function_that_the_library_lacks_is_an_error_of_one_line(folder: Path, report: dict[str, Any]) -> None:
    report["entries"][0]["name"] = "another"
    with pytest.raises(BadInput, match=r"^cannot load .*model.so: .*another"):
        loaded.load(folder / "model.so", report)


def test_a_library_that_is_not_what_was_written_is_refused(
    folder: Path, report: dict[str, Any], tmp_path: Path
) -> None:
    content = (folder / "model.so").read_bytes()
    changed = content[:5000] + bytes(4096) + content[9096:]
    for damaged, says in ((content[:5000], f"has 5000 bytes, and {len(content)} were written"), (changed, "its code")):
        (tmp_path / "model.so").write_bytes(damaged)
        with pytest.raises(DamagedFile, match=says):
            loaded.load(tmp_path / "model.so", report)
    (tmp_path / "model.so").write_bytes(content)
    loaded.load(tmp_path / "model.so", report)


@pytest.mark.parametrize("error", [0, errno.ENOSPC, errno.EINVAL])
def test_a_library_with_amx_asks_the_system_for_the_tiles(
    folder: Path, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(loaded, "cpu_flags", lambda: frozenset({"amx_tile"}))
    monkeypatch.setattr(loaded, "permissions", lambda _: [replace(amx.AMX.permission, ask=lambda: error)])
    report["instructions"] = ["amx_tile"]
    if not error:
        loaded.load(folder / "model.so", report)
        return
    with pytest.raises(MachineProblem) as caught:
        loaded.load(folder / "model.so", report)
    assert str(caught.value) == f"cannot load {folder / 'model.so'}: {amx.refusal(error)}"


@pytest.mark.parametrize("entry", ["main"], indirect=True)
def test_the_script_refuses_a_cpu_that_lacks_instructions_and_a_system_without_tiles(
    folder: Path, make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    shutil.copy(folder / "model.so", tmp_path)
    spec = replace(read_spec(make_job()), inputs=INPUTS)
    text = script.source(spec, threads=1, rows=[{}], instructions=["sse2", "sse9_9", "avx99"])
    assert (
        _says(tmp_path, text) == "run.py: the model was compiled for a CPU with sse9_9, avx99, which this one lacks\n"
    )
    text = script.source(spec, threads=1, rows=[{}], instructions=["amx_tile"])
    if "amx_tile" not in cpu_flags():
        assert "for a CPU with amx_tile" in _says(tmp_path, text)
    text = text.replace("if listed and", "if False and").replace("(ask_for_tiles())", f"({errno.ENOSPC})")
    assert _says(tmp_path, text) == f"run.py: {amx.refusal(errno.ENOSPC)}\n"


def test_a_board_that_runs_a_library_itself_is_checked_as_well(
    make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    spec = replace(read_spec(make_job()), inputs=INPUTS)
    text = script.board_source(spec, BoardSettings(), threads=1, instructions=["sse2", "i8mm"])
    says = _says(tmp_path, text, "here")
    assert says == "run.py: the model was compiled for a CPU with i8mm, which this one lacks\n"
    assert "here" in script.board_source(spec, BoardSettings(), threads=1), "without instructions nothing is checked"


def _says(folder: Path, text: str, *words: str) -> str:
    (folder / "run.py").write_text(text)
    done = subprocess.run([sys.executable, str(folder / "run.py"), *words], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    "padding",
    [
        {"inputs": {"x": ["batch"]}, "outputs": [["batch", ""]]},
        {"inputs": {"z": ["batch", ""]}, "outputs": [["batch", ""]]},
        {"inputs": {"x": ["batch", ""]}, "outputs": [["batch"]]},
        {"inputs": {"x": ["batch", ""]}, "outputs": []},
        {"outputs": [["rows", ""]], "counts": ["columns"]},
    ],
)
def test_a_report_with_open_dimensions_that_the_library_lacks_is_damaged(
    folder: Path, report: dict[str, Any], padding: dict[str, Any]
) -> None:
    outputs = [{"name": "y", "shape": [1, 8], "dtype": "float32"}]
    with pytest.raises(DamagedFile, match="report.json is damaged: padding is not of its inputs and outputs"):
        loaded.load(folder / "model.so", {**report, "outputs": outputs, "padding": padding})
    right = {"inputs": {"x": ["batch", ""]}, "outputs": [["batch", ""]]}
    loaded.load(folder / "model.so", {**report, "outputs": outputs, "padding": right})
