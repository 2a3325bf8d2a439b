"""An analytic estimate of how fast the loop nest of a GPU's kernel is, for searches that have no cost model yet.

A kernel takes at least as long as its arithmetic, its loads from shared memory and its traffic with the L2 cache, each
at the highest rate of the multiprocessors that it keeps busy. That is the roofline model (Williams, Waterman and
Patterson, "Roofline", CACM 52(4), 2009), with a roof for each of the three. The rates are only reached with enough
operations in flight to hide their latency: by Little's law, latency times throughput, counted as the warps of a
multiprocessor times the independent operations of a thread (Volkov, "Understanding Latency Hiding on GPUs",
dissertation, UC Berkeley, 2016, chapters 4 and 5). How many warps that are follows from the threads, the registers and
the shared memory of a block, as in the occupancy calculator of NVIDIA's CUDA C++ Programming Guide.

Nothing in it was fitted to measurements. It tells the hopeless from the sensible, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.strategies.space import Floats
from autotune.tvm_backend.cuda.multiprocessors import Multiprocessors, multiprocessors
from autotune.tvm_backend.search.nest import TiledNests
from autotune.tvm_backend.search.tiled_block import Numbers
from autotune.tvm_backend.types import Target

# What MetaSchedule makes of the levels of a GPU's nest: blocks, virtual threads and threads; then the steps of the
# reduction between which inputs are copied to shared memory; then what a thread does in a step.
STRUCTURE = "SSSRRSRS"
_BLOCKS, _VIRTUAL, _THREADS, _STEPS = range(4)
_WARP = 32
_WORD = 4  # bytes
_MOST_REGISTERS = 255  # of a thread
_ADDRESSES = 24  # registers of a thread for indices and pointers
_MOST_INDEPENDENT = 8  # operations of a thread that a multiprocessor begins before it waits for the first
_HOPELESS = 1e-9


@dataclass(frozen=True)
class GpuLimits:
    """A GPU, and what a block may have on it.

    Attributes:
        most_threads: Of a block.
        most_shared: Bytes of shared memory of a block.
    """

    chip: Multiprocessors
    most_threads: int
    most_shared: int

    @classmethod
    def of(cls, target: Target) -> GpuLimits:
        """Read the limits of a target."""
        threads = target.attrs["max_threads_per_block"]
        shared = target.attrs["max_shared_memory_per_block"]
        return cls(multiprocessors(target), int(threads), int(shared))


@dataclass(frozen=True)
class Occupancy:
    """What the blocks of n kernels keep busy, each [n].

    Attributes:
        blocks: Of the whole kernel.
        threads: Of a block.
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
        registers = _results(nests) + _operands(nests) + _ADDRESSES
        step = _elements(nests) * _WORD
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
        fits = (threads <= limits.most_threads) & (shared <= limits.most_shared) & (registers <= _MOST_REGISTERS)
        return cls(sizes[_BLOCKS].prod(axis=1), threads, registers, step, shared, np.where(fits, room, 0))

    def warps(self, chip: Multiprocessors) -> Numbers:
        """Count the warps that a busy multiprocessor has: fewer than it holds where the kernel has too few blocks."""
        blocks = np.minimum(self.together, np.ceil(self.blocks / chip.count))
        return np.asarray(blocks * np.ceil(self.threads / _WARP))

    def busy(self, chip: Multiprocessors) -> Numbers:
        """Return the share of the GPU's threads' time that is spent on the kernel's own work.

        The last round of blocks may leave multiprocessors idle, and the last warp of a block may lack threads.
        """
        at_once = np.maximum(self.together, 1) * chip.count
        rounds = self.blocks / (np.ceil(self.blocks / at_once) * np.minimum(at_once, _whole(self.blocks, chip.count)))
        lanes = self.threads / (np.ceil(self.threads / _WARP) * _WARP)
        return np.asarray(rounds * lanes)


def gpu_throughput(nests: TiledNests, limits: GpuLimits) -> Floats:
    """Estimate the throughput of kernels relative to the arithmetic peak of the GPU, [n]; higher is better.

    Args:
        nests: Loop nests of the structure `STRUCTURE`.
        limits: The GPU.
    """
    chip = limits.chip
    occupancy = Occupancy.of(nests, limits)
    work = nests.einsum.extents.prod() / chip.count  # multiply-adds of a multiprocessor
    warps = occupancy.warps(chip)
    results = _results(nests)
    in_flight = np.maximum(warps * _WARP * np.minimum(results, _MOST_INDEPENDENT), 1e-3)
    arithmetic = work / (chip.multiply_adds * np.minimum(1, in_flight / (chip.latency * chip.multiply_adds)))
    shared = work * _WORD * _operands(nests) / results / chip.shared_bytes
    copied = occupancy.blocks / chip.count * _steps(nests) * occupancy.step
    in_flight = np.maximum(
        np.minimum(occupancy.together, np.ceil(occupancy.blocks / chip.count)) * occupancy.shared, 1e-3
    )
    traffic = copied / (chip.l2_bytes * np.minimum(1, in_flight / (chip.l2_latency * chip.l2_bytes)))
    ideal = work / chip.multiply_adds
    speed = ideal / np.maximum.reduce([arithmetic, shared, traffic]) * occupancy.busy(chip)
    return np.asarray(np.where(occupancy.together >= 1, speed, _HOPELESS))


def _whole(blocks: Numbers, count: int) -> Numbers:
    """Round a number of blocks up to a multiple of the multiprocessors."""
    return np.asarray(np.ceil(blocks / count) * count)


def _steps(nests: TiledNests) -> Numbers:
    return np.asarray(nests.sizes[_STEPS].prod(axis=1))


def _results(nests: TiledNests) -> Numbers:
    """Count the results of a thread, which stay in registers."""
    inner = [size.prod(axis=1) for kind, size in zip(nests.structure, nests.sizes, strict=True) if kind == "S"][3:]
    return np.asarray(nests.sizes[_VIRTUAL].prod(axis=1) * np.prod(inner, axis=0))


def _operands(nests: TiledNests) -> Numbers:
    """Count the elements of the inputs that a thread needs for one step of the innermost reduction."""
    einsum = nests.einsum
    tile = np.ones((len(nests.spatial), len(einsum.extents)))
    for level in (_VIRTUAL, 5, 7):
        tile[:, list(einsum.spatial)] *= nests.sizes[level]
    return _input_elements(nests, tile)


def _elements(nests: TiledNests) -> Numbers:
    """Count the elements of the inputs that a block needs for one step."""
    einsum = nests.einsum
    tile = np.ones((len(nests.spatial), len(einsum.extents)))
    for level, (kind, size) in enumerate(zip(nests.structure, nests.sizes, strict=True)):
        if level not in (_BLOCKS, _STEPS):
            tile[:, list(einsum.spatial if kind == "S" else einsum.reduction)] *= size
    return _input_elements(nests, tile)


def _input_elements(nests: TiledNests, tile: Numbers) -> Numbers:
    regions = [(1 + (tile - 1) @ access.T).prod(axis=1) for access in nests.einsum.accesses[:-1]]
    return np.asarray(np.sum(regions, axis=0))
