"""Find where CUDA is installed, in Python wheels or in a toolkit, and load the part of TVM that knows it.

That is loaded also on a machine without a GPU, where it compiles only. TVM keeps what calls the compiler beside what
launches kernels, in a library that needs the CUDA runtime and the driver's `libcuda.so.1`. Where that library does not
load, TVM says nothing and stores source code as if it were compiled. The runtime is found no matter what the loader's
path is. A machine without a driver gets a placeholder of it: a library with the names that are missing, none of which
can be called.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.errors import MachineProblem
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.linker import find_linker

CUDART = "libcudart.so.13"  # the one that TVM's wheel was linked against
_WHEELS = "nvidia/cu13"
_HERE = "_HERE_="
DRIVER = "libcuda.so.1"
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


def installed() -> bool:
    """Whether a compiler for CUDA seems to be here: nvcc, or the bindings of NVRTC."""
    return nvcc() is not None or importlib.util.find_spec("cuda") is not None


def nvcc() -> str | None:
    """The path of NVIDIA's compiler driver, from PATH or from a toolkit; None where there is none."""
    if path := shutil.which("nvcc"):
        return path
    return next((str(root / "bin/nvcc") for root in _named_roots() if (root / "bin/nvcc").is_file()), None)


def cudart() -> Path | None:
    """The CUDA runtime library of a wheel or a toolkit; None where there is none."""
    paths = (root / folder / CUDART for root in roots() for folder in ("lib", "lib64", f"targets/{_triple()}/lib"))
    return next((path for path in paths if path.is_file()), None)


def include_folders() -> tuple[Path, ...]:
    """The folders with the headers that generated code includes, of one installation; none where they are missing."""
    for root in roots():
        base = [root / "include", root / "targets" / _triple() / "include"]
        folders = [folder for item in base for folder in (item, item / "cccl") if folder.is_dir()]
        wanted = ("cuda_fp16.h", "cuda_runtime.h", "cuda/std/cstdint")
        if all(any((folder / name).is_file() for folder in folders) for name in wanted):
            return tuple(folders)
    return ()


def headers_root() -> Path | None:
    """The installation that has these headers: what TVM takes `CUDA_PATH` for."""
    folders = include_folders()
    return next((root for root in roots() if folders and root in folders[0].parents), None)


def roots() -> Iterator[Path]:
    """Folders that CUDA may be installed in, what the user has named first."""
    yield from _named_roots()
    yield from _wheels()
    if real := _root_of_nvcc():
        yield real


def _named_roots() -> Iterator[Path]:
    for name in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    yield Path("/usr/local/cuda")


def _wheels() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")  # a namespace package: several folders may contribute
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder).parent / _WHEELS
        if path.is_dir():
            yield path


@lru_cache(maxsize=1)
def _root_of_nvcc() -> Path | None:
    """The toolkit that `nvcc` itself says it belongs to: the one in PATH may be a script that calls another."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    try:
        command = [compiler, "--dryrun", "-x", "cu", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    here = next((line.partition(_HERE)[2].strip() for line in said.splitlines() if _HERE in line), "")
    return Path(here).parent if here else None


def _triple() -> str:
    return "sbsa-linux" if platform.machine() in ("aarch64", "arm64") else f"{platform.machine()}-linux"


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


def _load_cudart() -> None:
    problem = "pip install 'autotune-tvm[cuda]', or a CUDA 13 toolkit, brings it"
    path = cudart()
    for name in (CUDART, *([str(path)] if path else [])):
        try:
            ctypes.CDLL(name)
            return
        except OSError as error:
            problem = problem if path is None else str(error)
    raise MachineProblem(f"the CUDA runtime {CUDART} is missing: {problem}")


def _load_driver() -> None:
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        if _DRIVER_NODE.exists():
            raise MachineProblem(
                f"the NVIDIA driver's {DRIVER} does not load ({error}); add its folder to LD_LIBRARY_PATH"
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
                    f"{command[0]} cannot link a placeholder of {DRIVER}: {done.stderr.strip()[-200:]}"
                )
        ctypes.CDLL(str(folder / DRIVER))


def _placeholder_commands(linker: str, folder: Path) -> list[list[str]]:
    names = [f"--defsym={name}=0" for name in _DRIVER_NAMES]
    if Path(linker).name == "ld":
        made = [linker, "-shared", "-soname", DRIVER, "-o", DRIVER, "empty.o", *names]
        return [[linker, "-r", "-b", "binary", "-o", "empty.o", "empty"], made]
    (folder / "empty.c").write_text("extern int autotune_placeholder;\n")
    options = ",".join(("-soname", DRIVER, *names))
    return [[linker, "-shared", "-nostdlib", f"-Wl,{options}", "-o", DRIVER, "empty.c"]]


def _load_tvm_part(tvm: Any) -> None:
    from tvm_ffi.libinfo import load_lib_ctypes

    folder = Path(tvm.__file__).parent / "lib"
    try:
        load_lib_ctypes(package="tvm", target_name="tvm_runtime_cuda", extra_lib_paths=[folder], mode="RTLD_LOCAL")
    except (OSError, FileNotFoundError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise MachineProblem(f"TVM's part for CUDA does not load: {lines[-1]}") from error
