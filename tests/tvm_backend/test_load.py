"""TVM is loaded with the intrinsics of a target, and leaves Python as it was."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

from autotune import stages
from autotune.tvm_backend.load import load_tvm


def test_the_intrinsics_of_cuda_are_there_and_stacks_have_their_source_again() -> None:
    load_tvm("cuda")
    from tvm.s_tir import TensorIntrin

    assert TensorIntrin.get("wmma_sync_16x16x16_f16f16f32") is not None
    assert inspect.stack()[0].code_context


def at_run_time(module: ast.Module) -> ast.Module:
    """A module without what only a checker of types imports."""
    typing_only = [
        node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return ast.Module([node for node in module.body if node not in typing_only], [])


def told(code: str, tmp_path: Path) -> list[str]:
    """The words that code prints, and what is left of PyTorch: whether it was imported, and what its import says."""
    (tmp_path / "torch.py").write_text("print('imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", f"import gc, sys\n{code}\nprint('torch' in sys.modules)\nimport torch"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_a_worker_has_loaded_what_its_stages_import_and_leaves_python_as_it_was(tmp_path: Path) -> None:
    """Each stage runs in a process of its own, which would load it anew. PyTorch takes longer to load than TVM."""
    (folder,) = stages.__path__
    files = [Path(folder) / f"{name}.py" for name in ("search", "build", "train", "trial_features", "stage", "on_cpu")]
    nodes = [node for file in files for node in ast.walk(at_run_time(ast.parse(file.read_text())))]
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    imported = {name for name in modules if name.startswith("autotune.tvm_backend")}
    assert len(imported) > 5
    code = "from autotune.tvm_backend.load import load_for_tuning as load; load('llvm'); print(*sys.modules)"
    *loaded, collects, torch, later = told(f"{code}; print(gc.isenabled())", tmp_path)
    assert imported <= {*loaded}
    assert (collects, torch, later) == ("True", "False", "imported"), "one that asks for PyTorch later gets it"


def test_a_process_that_times_a_library_does_not_import_pytorch(tmp_path: Path) -> None:
    code = "from autotune.tvm_backend.export.timing import timed_process; timed_process.import_runtime('library')"
    assert told(code, tmp_path) == ["False", "imported"]


def test_a_process_that_loads_a_library_has_the_functions_that_kernels_call(tmp_path: Path) -> None:
    code = "from autotune.tvm_backend.export.host_runtime import load_runtime; load_runtime(); import tvm_ffi"
    code += "; print(tvm_ffi.get_global_func('tvm.contrib.sort.argsort') is not None, 'tvm' in sys.modules)"
    assert told(code, tmp_path)[:2] == ["True", "False"]
