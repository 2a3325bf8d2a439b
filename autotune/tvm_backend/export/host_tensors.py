"""Tensors that arrays of this process are copied into and out of: what it takes to call a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.types import DeviceArray

Arrays = list[npt.NDArray[Any]]
Returned = DeviceArray | Sequence[DeviceArray]  # by a function of a model: one output, or several

_ALIGNMENT = 128  # bytes


class HostTensors:
    """Tensors in the memory of this process that arrays are copied into.

    TVM takes ten times as long to make a tensor of a small array as NumPy to copy it.
    """

    def __init__(self, inputs: Sequence[tuple[tuple[int, ...], str]]) -> None:
        import tvm_ffi

        self._views = [_aligned(shape, dtype) for shape, dtype in inputs]
        self.tensors = [tvm_ffi.from_dlpack(view) for view in self._views]

    def fill(self, arrays: Sequence[npt.NDArray[Any]], kept: Sequence[bool] = ()) -> Sequence[DeviceArray]:
        """Copy an array into each tensor but those that are kept, and return the tensors."""
        for view, array, stays in zip(self._views, arrays, kept or [False] * len(arrays), strict=True):
            if not stays:
                np.copyto(view, array)
        return self.tensors


def _aligned(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Zeros that begin where a kernel may expect an array to begin."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(count + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + count].view(dtype).reshape(shape)


def tensors_of(result: Returned) -> list[DeviceArray]:
    """Return the tensors that a function of a model returned: one, or several."""
    return [result] if hasattr(result, "shape") else list(result)


def host_arrays(result: Returned) -> Arrays:
    """Return copies of what a function returned in the memory of this process."""
    return [np.from_dlpack(tensor).copy() for tensor in tensors_of(result)]
