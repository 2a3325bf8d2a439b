"""Load a library for a CPU with TVM's runtime alone, as the C++ program does: TVM's compiler takes seconds to load."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from autotune.errors import MachineProblem
from autotune.tvm_backend.types import RuntimeModule

_CPU = (1, 0)  # DLPack's number of the kind of device, and which of them
# The second has functions that some kernels call, such as `tvm.contrib.sort.argsort`.
_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
_POOLED = 2  # TVM's number of the allocator that keeps what is freed


def load_on_host(library: Path) -> tuple[RuntimeModule, RuntimeModule]:
    """Load a library. If TVM is loaded already, its runtime is the same.

    Returns:
        The library, and its virtual machine, which has the functions of the model by their names.

    Raises:
        MachineProblem: TVM's runtime is missing.
        Exception: What TVM raises where the library cannot be loaded.
    """
    load_runtime()
    import tvm_ffi

    module = tvm_ffi.load_module(str(library))
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](*_CPU, _POOLED)
    return module, machine


def load_runtime() -> None:
    """Load TVM's runtime.

    Raises:
        MachineProblem: It is missing.
    """
    with _leaving_torch_out():
        importlib.import_module("tvm_ffi")
    _load_libraries()


class _NoTorch:
    """Finds no torch for the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for torch, and leave all else to those who come after."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is left out here", name=name)


@contextlib.contextmanager
def _leaving_torch_out() -> Iterator[None]:
    """Load nothing of torch in this thread: TVM's interface loads it wherever it is installed, which takes seconds."""
    finder: Any = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@cache
def _load_libraries() -> None:
    package = importlib.util.find_spec("tvm")
    try:
        if package is None or package.origin is None:
            raise OSError("there is no package tvm")
        for name in _LIBRARIES:
            ctypes.CDLL(str(Path(package.origin).with_name("lib") / name), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise MachineProblem(f"cannot load TVM's runtime: {error}; install autotune again") from error
