"""Time a built library on a GPU: by events around a graph of launches, at the clocks that it has under load."""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tvm

from autotune.errors import WorkerError, WrongResult, one_line
from autotune.tvm_backend.kernels.cuda_graph import LaunchGraph
from autotune.tvm_backend.kernels.time_kernel import FIRST_REPEAT_LIMIT, Runner
from autotune.tvm_backend.types import Device, DeviceArray, PlainArguments, RuntimeModule

_FIRST_BATCHES = 3
_BATCH = 100
_BATCH_MS = 3.0
_COOL_AFTER_S = 0.5
_LAUNCH_US = 50.0  # more than the host needs to launch a kernel
_COLD_RUNS = 10
_FLUSH = "autotune.overwrite_l2"
_FLUSHED_BYTES = 2**28  # more than the L2 cache of any GPU so far
_STDERR = 2
_EXIT_CODE = 70  # EX_SOFTWARE
_ERROR_OF_CUDA = re.compile(r"CUDA ?(Runtime |Launch )?Error: |failed with error: CUDA_ERROR")


@dataclass
class GpuRunner(Runner):
    """Times libraries on a GPU.

    A host needs two to four microseconds to launch a kernel, and many kernels take less than that. So runs are timed as
    a CUDA graph, which is also how an exported model launches them; the first runs, too. A GPU lowers its clocks
    within milliseconds of idleness and takes far longer to raise them, so that it is kept busy for `spin_up_ms` before
    the first timing of a process, and after a pause. A candidate that a single launch shows to be far slower than the
    best is not timed any further.

    Attributes:
        cold: whether the L2 cache is overwritten before each launch. Then single launches are timed.
    """

    spin_up_ms: int = 0
    cold: bool = False
    _used_at: float = -math.inf  # in monotonic seconds
    _graph: LaunchGraph | None = None
    _scratch: list[DeviceArray] = field(default_factory=list)

    def time(self, library: Path, args: PlainArguments, best_us: float | None) -> list[float]:
        """Microseconds per run, as `Runner.time`. See `leave_if_lost` for what ends the process."""
        try:
            return super().time(library, args, best_us)
        except Exception as error:
            leave_if_lost(self.device, error)
            if said := said_by_cuda(error):
                raise WorkerError(said) from error
            raise
        finally:
            self._used_at = time.monotonic()
            self._drop_graph()

    def _first(self, module: RuntimeModule, tensors: list[DeviceArray], best_us: float) -> list[float]:
        once = self._evaluate(module, tensors, 1, max(1, self.timing.warmup), 0)
        if self.spin_up_ms and time.monotonic() - self._used_at > _COOL_AFTER_S:
            once = self._evaluate(module, tensors, 1, 1, self.spin_up_ms)
        if self.cold:
            return self._cold(module, tensors, _FIRST_BATCHES)
        if min(once) - _LAUNCH_US > FIRST_REPEAT_LIMIT * best_us:
            return once
        alone_us = max(statistics.median(once) - _LAUNCH_US, 1.0)
        number = max(1, min(_BATCH, int(_BATCH_MS * 1e3 / alone_us)))
        self._graph = self._recorded(module, tensors, number)
        if self._graph is None:
            return self._evaluate(module, tensors, number, _FIRST_BATCHES, 0)
        return [self._graph.time(1) for _ in range(_FIRST_BATCHES)]

    def _repeat(self, module: RuntimeModule, tensors: list[DeviceArray], first_us: float) -> list[float]:
        if self.cold:
            return [statistics.median(self._cold(module, tensors, _COLD_RUNS))]
        if self._graph is not None:
            return [self._graph.time_for(self.timing.min_repeat_ms)]
        return super()._repeat(module, tensors, first_us)

    def _recorded(self, module: RuntimeModule, tensors: list[DeviceArray], runs: int) -> LaunchGraph | None:
        """Return a graph of runs; None where what a library does cannot be recorded, so that it is launched."""
        self.device.sync()
        try:
            return LaunchGraph.record(self.device, partial(module["main"], *tensors), runs)
        except Exception:  # of CUDA or of TVM
            self.device.sync()  # raises if the context is lost, or something else than recording went wrong
            return None

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def _cold(self, module: RuntimeModule, tensors: list[DeviceArray], runs: int) -> list[float]:
        if not self._scratch:
            self._scratch = [tvm.runtime.empty((_FLUSHED_BYTES,), "uint8", self.device) for _ in range(2)]
            tvm.register_global_func(_FLUSH, self._overwrite, override=True)
        return self._evaluate(module, tensors, 1, runs, 0, before=_FLUSH)

    def _overwrite(self, *_: object) -> None:
        self._scratch[0].copyto(self._scratch[1])


def leave_if_lost(device: Device, error: Exception) -> None:
    """End this process if its CUDA context is unusable after an error.

    An illegal access makes every later call of the process fail, whoever makes it. Its parent sees a child that has
    died, blames the item that it worked on, and goes on with the others in a fresh process.
    """
    if isinstance(error, WrongResult):
        return
    try:
        device.sync()
    except Exception:  # the same error again, of whatever kind TVM makes it
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # Not through sys.stderr, which may be no longer what the parent reads.
        os.write(_STDERR, f"{one_line(said_by_cuda(error) or lines[-1])}\n".encode())
        os._exit(_EXIT_CODE)


def said_by_cuda(error: Exception) -> str:
    """Return the line of TVM's message that names CUDA's error; empty if there is none.

    If a launch fails, the launch's dimensions follow in lines of their own, which say nothing without it.
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if _ERROR_OF_CUDA.search(line)), "")
