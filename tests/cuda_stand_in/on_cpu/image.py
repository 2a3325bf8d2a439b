"""Compile CUDA C with g++, and pack the library as what the stand-in's driver takes for a cubin.

The image has the header of a cubin, which says the architecture, and then the names of its kernels and the library.
"""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from .translate import kernels, translate

HERE = Path(__file__).parent
PARTS = "block.o"
MARK = b"CUDA on a CPU:"  # before the size of the library, and the library itself
_OLDEST_GXX = 12  # the first with _Float16 in C++
_HEADER_BYTES = 64
_EM_CUDA = 190
_ABI = 8
LANGUAGE = ("-std=c++17", "-w", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", f"-I{HERE}", f"-I{HERE}/include")
HEADER = "device.h"


@lru_cache(maxsize=1)
def missing() -> str:
    """What this machine lacks for it; empty if nothing."""
    if platform.machine() != "x86_64":
        return "fibers are switched in assembly of x86-64"
    gxx = shutil.which("g++")
    if gxx is None:
        return "there is no g++"
    version = subprocess.run([gxx, "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    return "" if int(version.split(".")[0]) >= _OLDEST_GXX else f"g++ {version} is older than {_OLDEST_GXX}"


def install(folder: Path) -> None:
    """Put an `nvcc` into a folder, with what every kernel is linked with."""
    compiler = folder / "nvcc"
    compiler.write_text((HERE / "nvcc.py").read_text().replace("#!python", f"#!{sys.executable}"))
    compiler.chmod(0o755)
    (folder / "package").write_text(str(HERE.parent))
    _gxx("-O2", "-ftree-vectorize", "-c", str(HERE / "block.cc"), "-o", str(folder / PARTS))
    _gxx(*precompile(folder, *_kernel_options()))


def precompile(folder: Path, *options: str) -> list[str]:
    """Return what makes g++ compile the header once; with the same options, `-I` of the folder makes it use that."""
    return [*options, "-x", "c++-header", str(HERE / HEADER), "-o", str(folder / f"{HEADER}.gch")]


def compile_image(source: str, arch: str, parts: Path) -> bytes:
    """Compile CUDA C.

    Args:
        source: As TVM generates it.
        arch: Such as `sm_90`: what the image says that it is for.
        parts: The folder of `install`.

    Raises:
        UnknownPtx: It has assembly that is not known here.
        RuntimeError: g++ refuses it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernels.cc").write_text(f'#include "{HEADER}"\n{translate(source)}')
        library = folder / "kernels.so"
        made = ["-shared", "-s", "-o", str(library), str(folder / "kernels.cc"), str(parts / PARTS)]
        _gxx(*_kernel_options(), f"-I{parts}", *made)
        return _image(library.read_bytes(), kernels(source), int(arch.removeprefix("sm_")[:2].ljust(2, "0")))


@lru_cache(maxsize=1)
def half_instructions() -> tuple[str, ...]:
    """The option for the CPU's conversions of fp16, where it has them."""
    path = Path("/proc/cpuinfo")
    return ("-mf16c",) if path.exists() and " f16c" in path.read_text() else ()


def _kernel_options() -> tuple[str, ...]:
    return ("-O1", *half_instructions())


def _gxx(*arguments: str) -> None:
    done = subprocess.run(["g++", *arguments, *LANGUAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def _image(library: bytes, names: list[str], capability: int) -> bytes:
    payload = (
        b"".join(name.encode() + b"\0" for name in ["", *names]) + MARK + struct.pack("<Q", len(library)) + library
    )
    header = bytearray(_HEADER_BYTES)
    header[:9] = b"\x7fELF\x02\x01\x01\x00" + bytes([_ABI])
    struct.pack_into("<H", header, 18, _EM_CUDA)
    struct.pack_into(
        "<Q", header, 40, _HEADER_BYTES + len(payload)
    )  # the table of sections, which has one that is empty
    struct.pack_into("<I", header, 48, capability << 8)
    struct.pack_into("<HH", header, 58, _HEADER_BYTES, 1)
    return bytes(header) + payload + bytes(_HEADER_BYTES)
