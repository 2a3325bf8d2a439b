"""What a GPU can do at most: multiply-adds by its specification, and bytes by a copy within its memory."""

from __future__ import annotations

import time
from typing import Any

from autotune.tvm_backend.kernels.roofline import Roofline
from autotune.tvm_backend.search.occupancy import multiprocessors

# Multiply-adds of fp16 that are summed in fp32, a cycle of a multiprocessor: NVIDIA's figures for data centres. GPUs
# for games have half of it.
_TENSOR_CORES = {"sm_75": 512, "sm_80": 1024, "sm_86": 512, "sm_89": 512, "sm_90": 2048, "sm_100": 4096}
_COPIED_BYTES = 2**29  # several times the largest L2 cache
_COPIES = 4
_RUNS = 8


def gpu_roofline(device: Any, target: Any, *, half: bool = False, copied: int = _COPIED_BYTES) -> Roofline | None:
    """Return the limits of a GPU at its highest clock.

    Args:
        device: The TVM device.
        target: The target, for its architecture.
        half: Whether products are computed in fp16 by tensor cores, and not in fp32.
        copied: How many bytes are copied to measure the memory; twice as many are allocated.

    Returns:
        None if the rate of the architecture's tensor cores is not known.
    """
    arch = str(target.attrs["arch"])
    rate = _TENSOR_CORES.get(arch) if half else multiprocessors(target).multiply_adds
    if rate is None:
        return None
    gflops = 2 * rate * int(device.multi_processor_count) * int(device.max_clock_rate) / 1e6  # the clock is in kHz
    return Roofline(gflops, 2 * copied / _copy_s(device, copied) / 1e9)


def _copy_s(device: Any, size: int) -> float:
    """Return the seconds of a copy, of the fastest of some runs."""
    import tvm

    source, goal = (tvm.runtime.empty((size,), "uint8", device) for _ in range(2))
    taken = []
    for _ in range(_RUNS):
        device.sync()
        started = time.perf_counter()
        for _ in range(_COPIES):
            source.copyto(goal)
        device.sync()
        taken.append((time.perf_counter() - started) / _COPIES)
    return min(taken)
