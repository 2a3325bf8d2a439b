"""Load the part of TVM that knows CUDA, also on a machine without a GPU, where it compiles only.

TVM keeps what calls the compiler beside what launches kernels, in a library that needs the CUDA runtime and the
driver's `libcuda.so.1`. Where that library does not load, TVM says nothing and stores source code as if it were
compiled. The runtime is found in wheels and toolkits, no matter what the loader's path is. A machine without a driver
gets a placeholder of it: a library with the names that are missing, none of which can be called.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from autotune.errors import MachineProblem
from autotune.storage.room import scratch_folder
from autotune.tvm_backend.cuda import places
from autotune.tvm_backend.linker import find_linker

_DRIVER = "libcuda.so.1"
_DRIVER_NODE = Path("/dev/nvidiactl")  # there while the kernel's driver is loaded
# What TVM's library imports from the driver.
_DRIVER_NAMES = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_CREATE = "ffi.Module.create.cuda"


def load() -> None:
    """Make TVM able to build for CUDA in this process, and to run where there is a driver.

    Raises:
        MachineProblem: a library is missing, or does not load. Says which and what helps.
    """
    import tvm

    if tvm.get_global_func(_CREATE, allow_missing=True) is None:
        _load_cudart()
        _load_driver()
        _load_tvm_part(tvm)


def has_driver() -> bool:
    """Whether the driver's library loads on this machine, or is loaded. False with a placeholder."""
    try:
        return bool(ctypes.CDLL(_DRIVER)["cuInit"])
    except (OSError, AttributeError):
        return False


def _load_cudart() -> None:
    problem = "pip install 'autotune[cuda]', or a CUDA 13 toolkit, brings it"
    path = places.cudart()
    for name in (places.CUDART, *([str(path)] if path else [])):
        try:
            ctypes.CDLL(name)
            return
        except OSError as error:
            problem = problem if path is None else str(error)
    raise MachineProblem(f"the CUDA runtime {places.CUDART} is missing: {problem}")


def _load_driver() -> None:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        if _DRIVER_NODE.exists():
            raise MachineProblem(
                f"the NVIDIA driver's {_DRIVER} does not load ({error}); add its folder to LD_LIBRARY_PATH"
            ) from error
        _load_placeholder()


def _load_placeholder() -> None:
    """Link a library of the driver's name, with names that lead nowhere, and load it."""
    linker = find_linker()
    if linker is None:
        raise MachineProblem("no linker in PATH; install binutils or gcc")
    with scratch_folder("driver") as name:
        folder = Path(name)
        (folder / "empty").write_bytes(b"\0")
        commands = _placeholder_commands(linker, folder)
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            if done.returncode:
                raise MachineProblem(
                    f"{command[0]} cannot link a placeholder of {_DRIVER}: {done.stderr.strip()[-200:]}"
                )
        ctypes.CDLL(str(folder / _DRIVER))


def _placeholder_commands(linker: str, folder: Path) -> list[list[str]]:
    names = [f"--defsym={name}=0" for name in _DRIVER_NAMES]
    if Path(linker).name == "ld":
        made = [linker, "-shared", "-soname", _DRIVER, "-o", _DRIVER, "empty.o", *names]
        return [[linker, "-r", "-b", "binary", "-o", "empty.o", "empty"], made]
    (folder / "empty.c").write_text("extern int autotune_placeholder;\n")
    options = ",".join(("-soname", _DRIVER, *names))
    return [[linker, "-shared", "-nostdlib", f"-Wl,{options}", "-o", _DRIVER, "empty.c"]]


def _load_tvm_part(tvm: Any) -> None:
    from tvm_ffi.libinfo import load_lib_ctypes

    folder = Path(tvm.__file__).parent / "lib"
    try:
        load_lib_ctypes(package="tvm", target_name="tvm_runtime_cuda", extra_lib_paths=[folder], mode="RTLD_LOCAL")
    except (OSError, FileNotFoundError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise MachineProblem(f"TVM's part for CUDA does not load: {lines[-1]}") from error
