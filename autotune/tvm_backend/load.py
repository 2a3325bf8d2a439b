"""Load TVM: the tested pair of versions only, and only the tensor intrinsics that a target needs."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator

from autotune.errors import MachineProblem, UnsupportedVersion
from autotune.tvm_backend.cuda import compiler, runtime
from autotune.tvm_backend.isa.instruction_sets import architecture_of
from autotune.version import TESTED_TVM, installed_version

_PACKAGES = ("tvm", "tvm_ffi")
_INTRINSICS = "tvm.s_tir.tensor_intrin"
_CUDA_INTRINSICS = ("cuda", "dot_product_common")


def check_versions() -> None:
    """Check that TVM and its foreign-function library have the tested versions. Other pairs segfault.

    Raises:
        UnsupportedVersion: says what is installed and which command corrects it.
    """
    versions = {name: installed_version(name) for name in TESTED_TVM}
    if versions != TESTED_TVM:
        others = [name for name in TESTED_TVM if versions[name] != TESTED_TVM[name]]
        wrong = ", ".join(f"{name} {versions[name] or 'missing'}" for name in others)
        needed = " ".join(f"{name}=={version}" for name, version in TESTED_TVM.items())
        raise UnsupportedVersion(f"untested TVM installation ({wrong}); run: pip install {needed}")


def installation() -> list[tuple[int, int, int]]:
    """Return inode, modification time and size of a file of each package of TVM that is there now.

    They change when it is installed again: pip gives files other inodes, even if it installs the same version.
    """
    return [status for name in _PACKAGES for status in _stat(name)]


def _stat(package: str) -> list[tuple[int, int, int]]:
    try:
        spec = importlib.util.find_spec(package)
        status = os.stat(spec.origin) if spec is not None and spec.origin else None
    except (OSError, ImportError, ValueError):
        return []
    return [(status.st_ino, status.st_mtime_ns, status.st_size)] if status else []


# What search, build, measure and train import, or what imports it.
_OF_STAGES = tuple(
    f"autotune.tvm_backend.{name}"
    for name in (
        "target",
        "kernels.build_kernel",
        "kernels.machine_check",
        "kernels.verify",
        "search.cost_model",
        "search.evolutionary",
        "search.propose",
    )
)


def load_tvm(target_kind: str) -> None:
    """Import TVM with the tensor intrinsics for a kind of target, and with our functions and intrinsics for CPUs.

    When the first TuneContext is made, TVM imports the intrinsics of every architecture, which takes over ten
    seconds. For a CPU, those of its architecture (0.1 s) are enough, and for a GPU those of CUDA. They are imported
    here into a package object of our own, so that TVM finds the package loaded.

    Args:
        target_kind: `llvm` or `cuda`.

    Raises:
        UnsupportedVersion: the installed TVM was not tested.
    """
    check_versions()
    with _modules_not_collected():
        _load(target_kind)


def _load(target_kind: str) -> None:
    # The threads of TVM's own pool, which only fill arguments here, would wait in a loop that takes turns with the
    # threads of the kernels that are timed.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    with without_torch():
        tvm = importlib.import_module("tvm")
    s_tir = importlib.import_module("tvm.s_tir")
    if _INTRINSICS not in sys.modules:
        package = types.ModuleType(_INTRINSICS)
        package.__path__ = [os.path.join(os.path.dirname(str(s_tir.__file__)), "tensor_intrin")]
        sys.modules[_INTRINSICS] = package
        setattr(s_tir, "tensor_intrin", package)  # noqa: B010  the import system would do so
    with _stacks_without_source():
        for name in _CUDA_INTRINSICS if target_kind == "cuda" else (_cpu_intrinsics(tvm),):
            importlib.import_module(f"{_INTRINSICS}.{name}")
    if target_kind == "cuda":
        compiler.install()
        with contextlib.suppress(MachineProblem):  # a model can be read without; a stage says what is missing
            runtime.load()
            compiler.find_compiler()
    importlib.import_module("tvm.s_tir.meta_schedule")
    _register()
    if target_kind == "cuda":
        _register_for_gpus()


def _register() -> None:
    """Register what programs and the traces of their schedules name."""
    from autotune.tvm_backend.intrinsics import amx_and_vector_tiles, dots, few_bit_dots, few_bit_schedules
    from autotune.tvm_backend.vector_math import registry

    for module in (registry, amx_and_vector_tiles, dots, few_bit_dots, few_bit_schedules):
        module.register()


def _register_for_gpus() -> None:
    from autotune.tvm_backend.cuda import wmma

    with _stacks_without_source():
        wmma.register()


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Let PyTorch seem not to be installed, unless it is loaded already.

    TVM's foreign-function library imports it where it is there, which takes longer than all that TVM itself imports. It
    does so for programs that hand PyTorch's tensors to TVM, as nothing here does.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


@contextlib.contextmanager
def _modules_not_collected() -> Iterator[None]:
    """Collect no garbage while TVM is loaded for the first time.

    Modules live as long as their process, and to look through those of TVM takes a tenth of the time of loading it.
    """
    if "tvm" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _stacks_without_source() -> Iterator[None]:
    """Let `inspect.stack` return frames without their lines of source.

    TVM's parser calls it for each of nearly two hundred intrinsics. Looking for the source of every frame among all
    modules takes ten seconds, and the parser needs the lines for methods of classes only.
    """
    original = inspect.stack
    inspect.stack = _stack
    try:
        yield
    finally:
        inspect.stack = original


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    frames = list[inspect.FrameInfo]()
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        code = frame.f_code
        frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
    return frames


def load_intrinsics(triple: str) -> None:
    """Import the tensor intrinsics of the CPU of a board, which may be unlike the one here. `load_tvm` comes first."""
    if triple:
        with _stacks_without_source():
            importlib.import_module(f"{_INTRINSICS}.{_intrinsics_of(triple)}")


def _cpu_intrinsics(tvm: types.ModuleType) -> str:
    return _intrinsics_of(str(tvm.target.codegen.llvm_get_system_triple()))


def _intrinsics_of(triple: str) -> str:
    if (architecture := architecture_of(triple)) is not None:
        return architecture.intrinsics
    return "arm_cpu" if triple.startswith("arm") else "x86"  # Arm of 32 bits; on others nothing uses them


def load_for_tuning(target_kind: str, triples: Iterable[str] = ()) -> None:
    """Import everything that stages need. A worker does so before it forks, so that its children need not.

    Args:
        target_kind: As for `load_tvm`.
        triples: Those of the boards that are measured on.
    """
    with _modules_not_collected():
        load_tvm(target_kind)
        for triple in triples:
            load_intrinsics(triple)
        for name in ("xgboost", *_OF_STAGES):
            importlib.import_module(name)
