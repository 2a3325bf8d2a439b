"""An analytic estimate of how fast the loop nest of a GPU's kernel is, for searches that have no cost model yet.

A kernel's blocks copy tiles of the inputs to shared memory, step by step, and multiply what is there. A step takes a
multiprocessor as long as its schedulers need to begin the instructions of its warps, or as long as its traffic with the
L2 cache, each at its highest rate: the roofline model (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
A scheduler has a quarter of the warps, so that few warps leave some of them idle, and each warp waits for a tile that
is not copied ahead (Volkov, "Understanding Latency Hiding on GPUs", dissertation, UC Berkeley, 2016, chapters 4 and 5).
How many blocks a multiprocessor holds follows from their threads, registers and shared memory, as in the occupancy
calculator of NVIDIA's CUDA C++ Programming Guide.

The costs are fitted to 123 kernels that an H100 has timed (`scripts/gpu/fit_estimates.py`). Of the kernels of a task
that the fit has not seen, that which is estimated to be fastest takes 1.19 times the shortest time, and one at random
2.1 times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autotune.strategies.space import Floats
from autotune.tvm_backend.cuda.multiprocessors import Multiprocessors, max_shared_default, multiprocessors
from autotune.tvm_backend.search.nest import TiledNests
from autotune.tvm_backend.search.tiled_block import Numbers
from autotune.tvm_backend.types import Target

# What MetaSchedule makes of the levels of a GPU's nest: blocks, virtual threads and threads; then the steps of the
# reduction between which inputs are copied to shared memory; then what a thread does in a step.
STRUCTURE = "SSSRRSRS"
_BLOCKS, _VIRTUAL, _THREADS, _STEPS = range(4)
# The levels whose loops read the inputs of a thread in a step of the innermost reduction, and of a block in a step.
_OF_A_THREAD = (_VIRTUAL, 5, 7)
_OF_A_BLOCK = tuple(level for level in range(len(STRUCTURE)) if level not in (_BLOCKS, _STEPS))
_WARP = 32
_WORD = 4  # bytes
_MAX_REGISTERS = 255  # of a thread
_ADDRESSES = 24  # registers of a thread for indices and pointers
_COPIED = 2  # elements at a time, on average
HOPELESS = 1e-9


@dataclass(frozen=True)
class NestCosts:
    """What kernels cost on a multiprocessor, in cycles.

    Attributes:
        start: Of a kernel.
        wait: Until a copied tile is there.
        load: Of a scheduler, from shared memory.
        copy: Of a scheduler, with its addresses.
    """

    start: float
    wait: float
    load: float
    copy: float


NEST_COSTS = NestCosts(start=2000, wait=357, load=3.33, copy=64)


@dataclass(frozen=True)
class GpuLimits:
    """A GPU, and what a block may have on it.

    Attributes:
        max_shared, max_shared_default: Bytes of shared memory of a block, and of one that declares none.
    """

    chip: Multiprocessors
    max_threads: int
    max_shared: int
    max_shared_default: int

    @classmethod
    def of(cls, target: Target) -> GpuLimits:
        """Read the limits of a target."""
        threads = target.attrs["max_threads_per_block"]
        shared = target.attrs["max_shared_memory_per_block"]
        return cls(multiprocessors(target), int(threads), int(shared), max_shared_default(target))


@dataclass(frozen=True)
class Occupancy:
    """What the blocks of n kernels keep busy, each [n].

    Attributes:
        blocks: Of the whole kernel.
        registers: Of a thread, roughly.
        step: Bytes of the inputs that a block copies to shared memory for a step.
        shared: Bytes of shared memory of a block: those of all steps that are copied ahead.
        together: Blocks that a multiprocessor holds at the same time; 0 where it cannot hold one.
    """

    blocks: Numbers
    threads: Numbers
    registers: Numbers
    step: Numbers
    shared: Numbers
    together: Numbers

    @classmethod
    def of(cls, nests: TiledNests, limits: GpuLimits) -> Occupancy:
        """Count what kernels need, and what a multiprocessor has room for."""
        chip = limits.chip
        sizes = nests.sizes
        threads = sizes[_THREADS].prod(axis=1)
        registers = _results(nests) + _input_elements(nests, _OF_A_THREAD) + _ADDRESSES
        step = _input_elements(nests, _OF_A_BLOCK) * _WORD
        shared = step * nests.copies
        warps = np.ceil(threads / _WARP)
        room = np.minimum.reduce(
            [
                np.floor(chip.threads / (warps * _WARP)),
                np.floor(chip.registers / (warps * _WARP * registers)),
                np.floor(chip.shared / np.maximum(shared, 1)),
                np.full(len(threads), float(chip.blocks)),
            ]
        )
        fits = (threads <= limits.max_threads) & (shared <= limits.max_shared) & (registers <= _MAX_REGISTERS)
        return cls(sizes[_BLOCKS].prod(axis=1), threads, registers, step, shared, np.where(fits, room, 0))


def gpu_throughput(nests: TiledNests, limits: GpuLimits, costs: NestCosts = NEST_COSTS) -> Floats:
    """Estimate the throughput of kernels relative to the arithmetic peak of the GPU, [n]; higher is better.

    Args:
        nests: Loop nests of the structure `STRUCTURE`.
    """
    chip = limits.chip
    occupancy = Occupancy.of(nests, limits)
    work = nests.einsum.extents.prod()
    steps = np.asarray(nests.sizes[_STEPS].prod(axis=1))
    at_once = np.clip(np.ceil(occupancy.blocks / chip.count), 1, np.maximum(1, occupancy.together))
    mine = work / (occupancy.blocks * occupancy.threads * steps)  # multiply-adds of a thread in a step
    cycles_each = _WARP * chip.schedulers / chip.multiply_adds  # of a scheduler for those of a warp
    loads = mine * _input_elements(nests, _OF_A_THREAD) / _results(nests)
    copies = occupancy.step / (_WORD * occupancy.threads * _COPIED)
    warp = mine * cycles_each + loads * costs.load + copies * costs.copy
    busy = np.ceil(at_once * np.ceil(occupancy.threads / _WARP) / chip.schedulers) * warp
    waits = costs.wait if nests.copies == 1 else np.maximum(0, costs.wait / (nests.copies - 1) - busy)
    step = np.maximum(busy + waits, at_once * occupancy.step / chip.l2_bytes)
    rounds = np.ceil(occupancy.blocks / (chip.count * at_once))
    speed = work / (chip.count * chip.multiply_adds) / (costs.start + rounds * steps * step)
    return np.asarray(np.where(occupancy.together >= 1, speed, HOPELESS))


def _results(nests: TiledNests) -> Numbers:
    """Count the results of a thread, which stay in registers."""
    inner = [size.prod(axis=1) for kind, size in zip(nests.structure, nests.sizes, strict=True) if kind == "S"][3:]
    return np.asarray(nests.sizes[_VIRTUAL].prod(axis=1) * np.prod(inner, axis=0))


def _input_elements(nests: TiledNests, levels: Iterable[int]) -> Numbers:
    """Count the elements of the inputs that the loops of some levels read."""
    einsum = nests.einsum
    tile = np.ones((len(nests.spatial), len(einsum.extents)))
    for level in levels:
        tile[:, list(einsum.spatial if nests.structure[level] == "S" else einsum.reduction)] *= nests.sizes[level]
    regions = [(1 + (tile - 1) @ access.T).prod(axis=1) for access in einsum.accesses[:-1]]
    return np.asarray(np.sum(regions, axis=0))
