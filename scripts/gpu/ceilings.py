#!/usr/bin/env python
"""What torch reaches on this GPU: products of matrices, and ResNets run eagerly, as a CUDA graph, and compiled.

    python scripts/gpu/ceilings.py products
    python scripts/gpu/ceilings.py resnet18
    python scripts/gpu/ceilings.py resnet50

Times are medians of 20 timings by events, each around runs for 50 ms, after half a second of the same work.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SIZE = 4096
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


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same launches as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class Block(nn.Module):
    """A residual block of two 3x3 convolutions, or of 1x1, 3x3 and 1x1 with four times the channels."""

    def __init__(self, inputs: int, channels: int, stride: int, deep: bool) -> None:
        super().__init__()
        outputs = channels * (4 if deep else 1)
        shapes = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, outputs, 1, 1)]
        if not deep:
            shapes = [(inputs, channels, 3, stride), (channels, outputs, 3, 1)]
        layers: list[nn.Module] = []
        for number, shape in enumerate(shapes):
            layers += [_conv(*shape), *([nn.ReLU()] if number < len(shapes) - 1 else [])]
        self.branch = nn.Sequential(*layers)
        self.way = nn.Identity() if inputs == outputs and stride == 1 else _conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.way(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


def resnet(counts: tuple[int, ...], deep: bool) -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(counts):
        channels = 64 * 2**stage
        for number in range(count):
            layers.append(Block(inputs, channels, 2 if stage and not number else 1, deep))
            inputs = channels * (4 if deep else 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*layers).cuda().eval()


def products() -> None:
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("fp16", torch.float16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
        ms = milliseconds(lambda a=a, b=b: a @ b)  # type: ignore[misc]
        print(f"{SIZE}-cubed product, {name}: {ms:.3f} ms, {2 * SIZE**3 / ms / 1e9:.1f} TFLOP/s")


@torch.inference_mode()
def network(name: str, counts: tuple[int, ...], deep: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    x = torch.randn(1, 3, 224, 224, device="cuda")
    model = resnet(counts, deep)
    times_ms = {"eager": milliseconds(lambda: model(x)), "graph": milliseconds(captured(lambda: model(x)))}
    try:
        compiled = torch.compile(model, mode="max-autotune")
        times_ms["compile, with graphs"] = milliseconds(lambda: compiled(x))
    except Exception as error:  # it needs a C compiler and Triton
        print(f"{name}: torch.compile does not run here: {str(error).splitlines()[0]}")
    print(f"{name}, batch 1, fp32 (TF32 off), ms: " + ", ".join(f"{key} {ms:.3f}" for key, ms in times_ms.items()))


MEASURES: dict[str, Callable[[], None]] = {
    "products": products,
    "resnet18": lambda: network("ResNet-18", (2, 2, 2, 2), False),
    "resnet50": lambda: network("ResNet-50", (3, 4, 6, 3), True),
}

if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    MEASURES[sys.argv[1]]()
