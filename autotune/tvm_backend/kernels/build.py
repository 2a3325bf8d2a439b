"""Compile one scheduled tensor program to a shared library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import WorkerError
from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.linker import find_linker
from autotune.tvm_backend.search.space import replay


def build_candidate(item: Candidate | Trial, program: Any, target: Any, path: Path) -> None:
    """Replay a candidate of a program and compile it. Raises what `replay` and `build_library` raise."""
    build_library(replay([item], program, target)[0].sch.mod, target, path)


def build_library(scheduled: Any, target: Any, path: Path) -> None:
    """Compile the program of a schedule for the target and write a library that `load_module` takes.

    Weights that a schedule repacks are taken as packed: only the kernel itself is timed.

    Raises:
        Exception: whatever TVM's lowering or code generation raises.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(scheduled)
    with target:  # or TVM would compile CUDA for the GPU that is here
        built = tvm.driver.build(module, target=target)
    built.export_library(str(path), fcompile=link_shared)


def link_shared(output: str, objects: Sequence[str] | str, *_: Any, **__: Any) -> None:
    """Link objects with the linker alone: 3 ms, where the compiler driver takes 20 and more.

    Raises:
        WorkerError: the linker failed.
    """
    files = [objects] if isinstance(objects, str) else list(objects)
    command = [_linker(), "-shared", "-o", output, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise WorkerError(f"cannot run the linker {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise WorkerError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")


def _linker() -> str:
    if found := find_linker():
        return found
    path = os.environ.get("PATH", "")
    raise WorkerError(
        f"no linker in PATH ({path}); install binutils or gcc, or start the daemon with a PATH that has ld"
    )
