"""Compile a kernel in CUDA C for the CPU, and run it on arrays."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import numpy as np

from . import image

FINE = 0
KERNEL = 'extern "C" __global__ void __launch_bounds__(1024) kernel'


class _Entry(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_uint)),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
    )


def launch(
    parts: Path,
    folder: Path,
    source: str,
    *arrays: np.ndarray[Any, Any],
    block: tuple[int, int, int],
    grid: tuple[int, int, int] = (1, 1, 1),
    shared: int = 0,
) -> int:
    """Launch the function `kernel` of a source on arrays; return the driver's error.

    Args:
        parts: Where `image.install` has put what kernels are compiled with.
        folder: For the library.
    """
    made = image.compile_image(source, "sm_90", parts)
    start = made.index(image.MARK) + len(image.MARK)
    (size,) = struct.unpack_from("<Q", made, start)
    path = folder / f"kernel{len(list(folder.iterdir()))}.so"
    path.write_bytes(made[start + 8 : start + 8 + size])
    entry = _Entry.in_dll(ctypes.CDLL(str(path)), "cuda_on_cpu_kernel")
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    arguments = (ctypes.c_void_p * len(arrays))(*map(ctypes.addressof, pointers))
    error: int = entry.run(arguments, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared)
    return error


def aligned(*shape: int, like: Any = None, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return an array that begins at a multiple of 64 bytes, as tensor cores want it."""
    kind = dtype if like is None else like.dtype
    raw = np.zeros(int(np.prod(shape)) * np.dtype(kind).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    made = raw[start : len(raw) - 64 + start].view(kind).reshape(shape)
    made[...] = 0 if like is None else like
    return made
