"""Measure what this machine's CPUs can do at most: floating-point operations, and bytes from memory.

A kernel can be no faster than the slower of the two allows. That is the roofline model of Williams, Waterman and
Patterson, "Roofline" (Communications of the ACM, 2009).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te

from autotune.tvm_backend.intrinsics import bfloat16
from autotune.tvm_backend.isa.available import rate, vector_registers
from autotune.tvm_backend.search.tasks import arguments
from autotune.tvm_backend.types import IRModule, Schedule, Target, TensorExpr

_CHAINS = 12  # of multiply-adds that do not wait for each other: units times cycles of latency, and some more
_STEPS = 256
_TIMES = 256  # so that the threads work much longer than it takes to start them
_READ_BYTES = 2**28  # in a run, by reading a ring as often as it takes
_MIN_RING = 2**16  # bytes of a thread
_RUNS = 7  # at a time
_MEASURED_S = 0.5  # of each; at first both threads of TVM's pool may share one CPU


@dataclass(frozen=True)
class Roofline:
    """The limits of a machine with a number of threads.

    Attributes:
        gflops: Floating-point operations in float32, in 1e9 a second. A multiply-add counts as two.
        gb_per_s: Bytes read, in 1e9 a second, from wherever a ring of `ring_bytes` stays: a cache, or memory.
        ring_bytes: The size of what was read again and again: that of the constants of a model.
    """

    gflops: float
    gb_per_s: float
    ring_bytes: int = 0

    def arithmetic_us(self, gflop: float, rate: float = 1.0) -> float:
        """Return the microseconds that so many operations take at least.

        Args:
            gflop: Floating-point operations, in 1e9.
            rate: How many of them are done in the time of one in float32; see `relative_rate`.
        """
        return gflop / rate / self.gflops * 1e6

    def moving_us(self, bytes: int) -> float:
        """Return the microseconds that reading so many bytes takes at least."""
        return bytes / self.gb_per_s / 1e3


def measure(target: Target, threads: int, ring_bytes: int = _READ_BYTES) -> Roofline:
    """Measure the limits of this machine's CPUs. It takes some two seconds; nothing else should run.

    A model reads its constants once a run, in order. Where the caches hold all of them, each run finds them there;
    where they do not, each run reads them from memory again. So a ring of their size is read as fast as they are.

    Args:
        target: The target, for the CPU.
        threads: How many threads the runtime uses.
        ring_bytes: The size of the constants. Figures for memory need several times the size of the last cache.
    """
    lanes = vector_registers(target)[0]
    operations = 2.0 * threads * _TIMES * _STEPS * _CHAINS * lanes
    piece = 4 * threads * _CHAINS * lanes
    steps = max(ring_bytes, threads * _MIN_RING) // piece
    times = max(1, _READ_BYTES // (steps * piece))
    return Roofline(
        operations / _fastest_s(_arithmetic(threads, lanes), target) / 1e9,
        times * steps * piece / _fastest_s(_reading(threads, times, steps, lanes), target) / 1e9,
        steps * piece,
    )


def relative_rate(program: IRModule, target: Target) -> float:
    """Return how many multiply-adds of a program a CPU can do in the time of one in float32.

    Args:
        program: One that `prepare` has made. The types of its arguments say what it multiplies: unsigned bytes or words
            with signed bytes, or the halves that stand for bfloat16.
    """
    dtypes = {str(item.dtype) for item in arguments(program)}
    if target.kind.name != "llvm":
        return 1.0
    if "int8" in dtypes and dtypes & {"uint8", "int16"}:
        return rate(target, "integers")
    return rate(target, "bfloat16") if bfloat16.DTYPE in dtypes else 1.0


def _fastest_s(operands: list[TensorExpr], target: Target) -> float:
    """Compile a sum over two operands or one, and return the seconds of its fastest run."""
    schedule = tvm.s_tir.Schedule(te.create_prim_func(operands))
    _keep_in_registers(schedule)
    with target:
        module = tvm.driver.build(schedule.mod, target=target)
    tensors = [tvm.runtime.tensor(np.ones([int(dim) for dim in item.shape], "float32")) for item in operands]
    evaluate = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=_RUNS)
    fastest = math.inf
    started = time.perf_counter()
    while time.perf_counter() - started < _MEASURED_S:
        fastest = min(fastest, *evaluate(*tensors).results)
    return float(fastest)


def _arithmetic(threads: int, lanes: int) -> list[TensorExpr]:
    """A sum of products whose operands are in the nearest cache: one load for each `_CHAINS` multiply-adds."""
    rows = te.placeholder((_STEPS, lanes), name="rows")
    factors = te.placeholder((_CHAINS, lanes), name="factors")
    step = te.reduce_axis((0, _STEPS), name="step")
    shape = (threads, _TIMES, _CHAINS, lanes)
    sums = te.compute(shape, lambda _t, _n, c, i: te.sum(rows[step, i] * factors[c, i], axis=step), name="sums")
    return [rows, factors, sums]


def _reading(threads: int, times: int, steps: int, lanes: int) -> list[TensorExpr]:
    """Sums over an array, each thread over its own part, so many times."""
    data = te.placeholder((threads, steps, _CHAINS, lanes), name="data")
    step = te.reduce_axis((0, steps), name="step")
    shape = (threads, times, _CHAINS, lanes)
    sums = te.compute(shape, lambda t, _n, c, i: te.sum(data[t, step, c, i], axis=step), name="sums")
    return [data, sums]


def _keep_in_registers(schedule: Schedule) -> None:
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
