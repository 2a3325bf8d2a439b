"""Before a kernel is timed, bring the caches of the CPUs into the state in which a model would leave them.

Between two calls of a kernel a model runs all others, which read their constants. So a kernel finds its own constants
in the nearest memory that holds those of the whole model, and its other arguments where the kernels before it have
left them. Timed in a loop it finds all of them in the nearest cache; with flushed caches, none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te

from autotune.machine.hardware import allowed_cpus, cache_bytes
from autotune.storage.device_kind import Held
from autotune.tvm_backend.types import DeviceArray, Kernel, PrimFunc

BEFORE = "autotune.as_in_a_model"  # the function that TVM's timer calls before each run
READER = "autotune_read"  # in a library
_FLUSH = "cache_flush_cpu_non_first_arg"
_LANES = 16  # of int32: a line of a cache
_CACHE_BYTES = {1: 2**16, 2: 2**20}  # of a CPU, where the system does not say
_LEVELS: dict[Held, int] = {"L2": 1, "L3": 2, "memory": 2}  # up to which level the caches hold something else


@dataclass(frozen=True)
class Context:
    """Where the arguments of a kernel are when a model calls it.

    Attributes:
        held: The nearest memory that holds the constants of the whole model.
        constants: The positions of the arguments that are constants.
    """

    held: Held
    constants: tuple[int, ...] = ()


class Caches:
    """The caches of the CPUs that this process may use, and the arguments of a kernel that they are prepared for.

    Attributes:
        context: Where these arguments are to be.
    """

    def __init__(self, context: Context, tensors: Sequence[DeviceArray]) -> None:
        self.context = context
        threads = int(os.environ.get("TVM_NUM_THREADS") or len(allowed_cpus()))
        level = _LEVELS[context.held]
        evicting = 2 * (cache_bytes(level, allowed_cpus()[:threads]) or threads * _CACHE_BYTES[level])
        # Written once: what was never written is one page of zeros, which any cache holds however long the ring is.
        self._ring = tvm.runtime.tensor(np.ones((threads, evicting // (4 * threads * _LANES), _LANES), "int32"))
        self._sums = tvm.runtime.empty((threads, _LANES), "int32")
        constants = [tensor for place, tensor in enumerate(tensors) if place in context.constants]
        others = [tensor for place, tensor in enumerate(tensors) if place not in context.constants]
        self._flushed = constants if context.held == "memory" else []
        self._read = [view for view in (_lines(tensor, threads) for tensor in others) if view is not None]

    def prepare(self, read: Kernel) -> None:
        """Make sure that the constants are where a model has them, and the other arguments near the CPUs.

        Args:
            read: What `reader` has become in the library of the kernel.
        """
        if self._flushed:
            tvm.get_global_func(_FLUSH)(self._sums, *self._flushed)
        read(self._ring, self._sums)
        for view in self._read:
            read(view, self._sums)


def _lines(tensor: DeviceArray, threads: int) -> DeviceArray | None:
    """Return the whole lines of a tensor, a part for each thread; None if there are too few."""
    size = math.prod(map(int, tensor.shape)) * int(tvm.DataType(str(tensor.dtype)).itemsize)
    lines = size // (4 * threads * _LANES)
    return tensor._create_view((threads, lines, _LANES), "int32") if lines else None


def reader() -> PrimFunc:
    """Return a program that reads a tensor, each thread a part of it, as threads of a model do.

    Every library that is to be timed is linked to it: so the same threads run both, one right after the other.
    """
    threads = te.var("threads", "int64")
    count = te.var("count", "int64")
    data = te.placeholder((threads, count, _LANES), "int32", name="data")
    line = te.reduce_axis((0, count), name="line")
    sums = te.compute((threads, _LANES), lambda t, i: te.sum(data[t, line, i], axis=line), name="sums")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([data, sums]))
    thread, lane, step = schedule.get_loops(schedule.get_sblock("sums"))
    schedule.reorder(thread, step, lane)
    schedule.vectorize(lane)
    schedule.parallel(thread)
    return schedule.mod["main"].with_attr("global_symbol", READER)
