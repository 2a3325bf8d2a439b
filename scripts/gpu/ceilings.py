#!/usr/bin/env python
"""What torch reaches on this GPU: products of matrices, and a copy.

    python scripts/gpu/ceilings.py

Times are medians of 20 timings by events, each around runs for 50 ms, after half a second of the same work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

SIZE = 4096
COPIED_BYTES = 1 << 30
SPIN_MS = 500.0
TIMING_MS = 50.0
TIMINGS = 20


def milliseconds(run: Callable[[], Any]) -> float:
    """The time of a run on the GPU's own clock."""
    once = max(_timed(run, 1), 1e-3)
    _timed(run, max(1, round(SPIN_MS / once)))
    number = max(1, round(TIMING_MS / once))
    return statistics.median(_timed(run, number) for _ in range(TIMINGS))


def _timed(run: Callable[[], Any], number: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(number):
        run()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / number


def products() -> None:
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("fp16", torch.float16, False),
        ("bf16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
        ms = milliseconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
        print(f"{SIZE}-cubed product, {name}: {ms:.3f} ms, {2 * SIZE**3 / ms / 1e9:.1f} TFLOP/s")


def copy() -> None:
    source = torch.randn(COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    ms = milliseconds(lambda: target.copy_(source))
    print(f"a copy of {COPIED_BYTES >> 20} MiB: {ms:.3f} ms, {2 * COPIED_BYTES / ms / 1e6:.0f} GB/s read and written")


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    products()
    copy()
