"""Load TVM once, the tested pair of versions only, and only the tensor intrinsics that a target needs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from dataclasses import dataclass
from importlib import metadata

from autotune.errors import MachineProblem, UnsupportedVersion
from autotune.tvm_backend.cuda import compiler, runtime
from autotune.tvm_backend.vector_math import intrinsics

TESTED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}

_PACKAGES = ("tvm", "tvm_ffi")
_INTRINSICS = "tvm.s_tir.tensor_intrin"
_CUDA_INTRINSICS = ("cuda", "dot_product_common")


def check_versions() -> None:
    """Refuse a pair of TVM and its foreign-function library that was not tested: others segfault.

    Raises:
        UnsupportedVersion: names what is installed and the command that mends it.
    """
    found = {name: _version(name) for name in TESTED}
    if found != TESTED:
        wrong = ", ".join(f"{name} {found[name] or 'missing'}" for name in TESTED if found[name] != TESTED[name])
        mend = " ".join(f"{name}=={version}" for name, version in TESTED.items())
        raise UnsupportedVersion(f"untested TVM installation ({wrong}); run: pip install {mend}")


@dataclass(frozen=True)
class Installation:
    """Which files TVM is made of now: inode, time and size of a file of each package; empty while there are none."""

    files: tuple[tuple[int, int, int], ...]

    @classmethod
    def now(cls) -> Installation:
        """Read from the disk. What pip installs anew has other inodes, even in the same version."""
        return cls(tuple(found for name in _PACKAGES for found in _stat(name)))


def _stat(package: str) -> list[tuple[int, int, int]]:
    try:
        spec = importlib.util.find_spec(package)
        found = os.stat(spec.origin) if spec is not None and spec.origin else None
    except (OSError, ImportError, ValueError):
        return []
    return [(found.st_ino, found.st_mtime_ns, found.st_size)] if found else []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load_tvm(target_kind: str) -> None:
    """Import TVM with the tensor intrinsics for `llvm` or `cuda`, and with our elementary functions for CPUs.

    TVM imports the intrinsics of every architecture when the first TuneContext is made, which takes over
    ten seconds; for a CPU, those of x86 (0.1 s) are enough, and for a GPU those of CUDA. They are imported here
    under a package object of our own, so that TVM's own import finds the package loaded.
    """
    check_versions()
    tvm = importlib.import_module("tvm")
    s_tir = importlib.import_module("tvm.s_tir")
    if _INTRINSICS not in sys.modules:
        package = types.ModuleType(_INTRINSICS)
        package.__path__ = [os.path.join(os.path.dirname(str(s_tir.__file__)), "tensor_intrin")]
        sys.modules[_INTRINSICS] = package
        setattr(s_tir, "tensor_intrin", package)  # noqa: B010  the import system would do so
    for name in _CUDA_INTRINSICS if target_kind == "cuda" else (_cpu_intrinsics(tvm),):
        importlib.import_module(f"{_INTRINSICS}.{name}")
    if target_kind == "cuda":
        compiler.install()
        with contextlib.suppress(MachineProblem):  # a model can be read without; a stage says what is missing
            runtime.load()
            compiler.find_compiler()
    importlib.import_module("tvm.s_tir.meta_schedule")
    intrinsics.register()


def _cpu_intrinsics(tvm: types.ModuleType) -> str:
    triple = str(tvm.target.codegen.llvm_get_system_triple())
    return "arm_cpu" if triple.startswith(("aarch64", "arm")) else "x86"


def load_for_tuning(target_kind: str) -> None:
    """All that stages need, so that the children which a worker forks find it loaded."""
    load_tvm(target_kind)
    importlib.import_module("xgboost")
