"""Where the parts of CUDA are installed: in Python wheels or in a toolkit. Never imports TVM."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

CUDART = "libcudart.so.13"  # the one that TVM's wheel was linked against
_WHEELS = "nvidia/cu13"
_HERE = "_HERE_="


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
