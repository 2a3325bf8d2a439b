"""Many runs of a kernel as one CUDA graph: the GPU starts them by itself, faster than a host can launch them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi

from autotune.errors import WorkerError
from autotune.tvm_backend.cuda.runtime import CUDART
from autotune.tvm_backend.types import Device

_NON_BLOCKING = 1
_RELAXED = 2  # what other threads do meanwhile does not matter
_Handle = ctypes.c_void_p


@dataclass
class LaunchGraph:
    """A graph of some runs.

    Attributes:
        runs: How many.
        stream: The stream that it is recorded from and launched in.
        graph, executable: The graph, and what can be launched.
    """

    runs: int
    stream: _Handle
    graph: _Handle
    executable: _Handle

    @classmethod
    def record(cls, device: Device, run: Callable[[], object], runs: int) -> LaunchGraph:
        """Record runs of what launches kernels. It must have run before: nothing is loaded or allocated meanwhile.

        Raises:
            WorkerError: CUDA refuses it.
        """
        made = cls(runs, _Handle(), _Handle(), _Handle())
        try:
            _call("cudaStreamCreateWithFlags", ctypes.byref(made.stream), ctypes.c_uint(_NON_BLOCKING))
            made._record(device, run)
            _call("cudaGraphInstantiate", ctypes.byref(made.executable), made.graph, ctypes.c_ulonglong(0))
        except BaseException:
            made.close()
            raise
        return made

    def _record(self, device: Device, run: Callable[[], object]) -> None:
        _call("cudaStreamBeginCapture", self.stream, _RELAXED)
        try:
            with tvm_ffi.use_raw_stream(device, self.stream.value or 0):
                for _ in range(self.runs):
                    run()
        finally:
            _call("cudaStreamEndCapture", self.stream, ctypes.byref(self.graph))

    def time(self, launches: int) -> float:
        """Return the microseconds of a run, by events around some launches of the graph.

        Raises:
            WorkerError: CUDA reports an error.
        """
        first = _Handle()
        last = _Handle()
        ms = ctypes.c_float()
        try:
            for event in (first, last):
                _call("cudaEventCreate", ctypes.byref(event))
            _call("cudaEventRecord", first, self.stream)
            for _ in range(launches):
                _call("cudaGraphLaunch", self.executable, self.stream)
            _call("cudaEventRecord", last, self.stream)
            _call("cudaEventSynchronize", last)
            _call("cudaEventElapsedTime", ctypes.byref(ms), first, last)
        finally:
            for event in (first, last):
                _drop("cudaEventDestroy", event)
        return ms.value * 1e3 / (launches * self.runs)

    def time_for(self, least_ms: float) -> float:
        """Return the microseconds of a run, over so many launches that they take some time."""
        once_ms = self.time(1) * self.runs / 1e3
        return self.time(max(1, math.ceil(least_ms / max(once_ms, 1e-3))))

    def close(self) -> None:
        """Free what it holds."""
        _drop("cudaGraphExecDestroy", self.executable)
        _drop("cudaGraphDestroy", self.graph)
        _drop("cudaStreamDestroy", self.stream)


@lru_cache(maxsize=1)
def _cudart() -> ctypes.CDLL:
    """The CUDA runtime, which TVM's part for CUDA has loaded."""
    library = ctypes.CDLL(CUDART)
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: Any) -> None:
    error = _cudart()[name](*arguments)
    if error:
        text = _cudart().cudaGetErrorString(error).decode()
        raise WorkerError(f"CUDA Runtime Error: {name}: {text} ({error})")


def _drop(name: str, handle: _Handle) -> None:
    """Free something. A context with an error refuses that too, and says nothing new."""
    if handle.value:
        _cudart()[name](handle)
        handle.value = None
