"""TVM is loaded with the intrinsics of a target, and leaves Python as it was."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import stages
from autotune.tvm_backend.load import load_tvm


def test_the_intrinsics_of_cuda_are_there_and_stacks_have_their_source_again() -> None:
    load_tvm("cuda")
    from tvm.s_tir import TensorIntrin

    assert TensorIntrin.get("wmma_sync_16x16x16_f16f16f32") is not None
    assert inspect.stack()[0].code_context


def test_garbage_is_collected_again_once_tvm_is_loaded() -> None:
    code = "import gc; from autotune.tvm_backend.load import load_tvm; load_tvm('llvm'); print(gc.isenabled())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"


def at_run_time(module: ast.Module) -> ast.Module:
    """A module without what only a checker of types imports."""
    typing_only = [
        node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return ast.Module([node for node in module.body if node not in typing_only], [])


def test_a_worker_has_loaded_what_its_stages_import() -> None:
    """Each stage runs in a process of its own, which would load it anew."""
    (folder,) = stages.__path__
    files = [Path(folder) / f"{name}.py" for name in ("search", "build", "train", "trial_features", "stage", "on_cpu")]
    nodes = [node for file in files for node in ast.walk(at_run_time(ast.parse(file.read_text())))]
    imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    code = (
        "from autotune.tvm_backend.load import load_for_tuning as load; load('llvm'); import sys; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in imported if name and name.startswith("autotune.tvm_backend")} <= {*loaded}


@pytest.mark.parametrize(
    "loads",
    [
        "from autotune.tvm_backend.load import load_tvm; load_tvm('llvm')",
        "from autotune.tvm_backend.export.timing import timed_process; timed_process.import_runtime('library')",
    ],
)
def test_tvm_does_not_import_pytorch_which_takes_longer_than_itself(loads: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('imported')")
    code = f"{loads}; import sys; print('torch' in sys.modules); import torch"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "imported"], "but one that asks for it later gets it"
