"""A library computes what its model does with a scalar among its inputs, in this process and by its script."""

from __future__ import annotations

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

from autotune.storage.formats import Entry, InputSpec
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export import loaded, script
from autotune.tvm_backend.export.compile import compile_tuned
from autotune.tvm_backend.export.join import Joiner
from autotune.tvm_backend.graph.prepare import prepare
from autotune.tvm_backend.kernels.build import link_shared

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
    inputs = [{"name": "x", "shape": (2,), "dtype": "float32"}]
    model = loaded.LoadedModel({"main": function}, OnGpu(), {"main": inputs})
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
