"""Measure what this machine can do at most: floating-point operations, and bytes read from memory.

A kernel can be no faster than the slower of the two allows. That is the roofline model of Williams, Waterman and
Patterson, "Roofline" (Communications of the ACM, 2009).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from autotune.tvm_backend.target import vector_registers

_CHAINS = 12  # of multiply-adds that do not wait for each other: units times cycles of latency, and some more
_STEPS = 256
_TIMES = 256  # so that the threads work much longer than it takes to start them
_READ_BYTES = 2**28  # more than the caches hold
_RUNS = 7  # at a time
_MEASURED_S = 1.0  # of each; at first both threads of TVM's pool may share one CPU


@dataclass(frozen=True)
class Roofline:
    """The limits of a machine with a number of threads.

    Attributes:
        gflops: Floating-point operations in float32, in 1e9 a second. A multiply-add counts as two.
        gb_per_s: Bytes read from memory, in 1e9 a second.
    """

    gflops: float
    gb_per_s: float

    def least_us(self, gflop: float, bytes: int) -> float:
        """Return the microseconds that so many operations on so many bytes take at least.

        Data that are in a cache are read faster than from memory. So a kernel with few operations may take less.
        """
        return max(gflop / self.gflops, bytes / 1e9 / self.gb_per_s) * 1e6


def measure(target: Any, threads: int) -> Roofline:
    """Measure the limits of this machine's CPUs. It takes some three seconds; nothing else should run.

    Args:
        target: The target, for the CPU.
        threads: How many threads the runtime uses.
    """
    lanes = vector_registers(target)[0]
    operations = 2.0 * threads * _TIMES * _STEPS * _CHAINS * lanes
    return Roofline(
        operations / _fastest_s(_arithmetic(threads, lanes), target) / 1e9,
        _READ_BYTES / _fastest_s(_reading(threads, lanes), target) / 1e9,
    )


def _fastest_s(operands: list[Any], target: Any) -> float:
    """Compile a sum over two operands or one, and return the seconds of its fastest run."""
    import numpy as np
    import tvm
    from tvm import te

    schedule = tvm.s_tir.Schedule(te.create_prim_func(operands))
    _keep_in_registers(schedule)
    with target:
        module = tvm.driver.build(schedule.mod, target=target)
    tensors = [tvm.runtime.tensor(np.ones([int(dim) for dim in item.shape], "float32")) for item in operands]
    evaluate = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=_RUNS)
    fastest, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < _MEASURED_S:
        fastest = min(fastest, *evaluate(*tensors).results)
    return float(fastest)


def _arithmetic(threads: int, lanes: int) -> list[Any]:
    """A sum of products whose operands are in the nearest cache: one load for each `_CHAINS` multiply-adds."""
    from tvm import te

    rows = te.placeholder((_STEPS, lanes), name="rows")
    factors = te.placeholder((_CHAINS, lanes), name="factors")
    step = te.reduce_axis((0, _STEPS), name="step")
    shape = (threads, _TIMES, _CHAINS, lanes)
    sums = te.compute(shape, lambda _t, _n, c, i: te.sum(rows[step, i] * factors[c, i], axis=step), name="sums")
    return [rows, factors, sums]


def _reading(threads: int, lanes: int) -> list[Any]:
    """A sum over an array that is larger than the caches."""
    from tvm import te

    steps = _READ_BYTES // (4 * threads * _CHAINS * lanes)
    data = te.placeholder((threads, 1, steps, _CHAINS, lanes), name="data")
    step = te.reduce_axis((0, steps), name="step")
    shape = (threads, 1, _CHAINS, lanes)
    sums = te.compute(shape, lambda t, n, c, i: te.sum(data[t, n, step, c, i], axis=step), name="sums")
    return [data, sums]


def _keep_in_registers(schedule: Any) -> None:
    """Run the threads in parallel and keep the sums of all chains in vector registers."""
    block = schedule.get_sblock("sums")
    thread, times, chain, lane, step = schedule.get_loops(block)
    schedule.reorder(step, chain, lane)
    written = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(written, times)
    for copy in (block, written):
        *_, chain, lane = schedule.get_loops(copy)
        schedule.vectorize(lane)
        schedule.unroll(chain)
    schedule.parallel(thread)
    first = schedule.decompose_reduction(block, step)
    *_, chain, _lane = schedule.get_loops(first)
    schedule.unroll(chain)
