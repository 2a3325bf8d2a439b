#!/usr/bin/env python
"""Forecast on paper how long networks take on an H100, for a first real run to confirm or refute. Needs no GPU.

    python scripts/gpu/forecast.py resnet18 resnet50 bert_layer

A kernel takes STARTED_US, and the longest of three: its operations at the rate of the multiprocessors that it fills,
its bytes from memory, and its steps one after the other. In fp32 the rate is the best that `search/occupancy.py`
estimates for DRAWN random schedules. On tensor cores a block computes 32 by 32 results, and they reach at most
REACHED of their peak. Every network is forecast with sums split among blocks and without. The floor is what no kernel
can beat: all operations at the peak of the GPU, or all bytes from memory. The peaks are those of NVIDIA's data sheet of
the H100 SXM. The other constants are assumptions; none was measured.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import models

from autotune.tvm_backend.load import load_for_tuning

MULTIPROCESSORS = 132
FP32_GFLOPS = 67e3
TENSOR_GFLOPS = {"tf32": 494.5e3, "fp16": 989e3}
GB_PER_S = 3350.0
STARTED_US = 2.0  # of a kernel in a graph, from the end of the one before
L2_GB_PER_S = 5500.0
REACHED = 0.6
STEP_US = 0.1  # a step of 64 terms of a block: a copy to shared memory, which the next step hides in part
TERMS_OF_A_STEP = 64
TILE = 32 * 32
DRAWN = 3000

Precision = Literal["fp32", "tf32", "fp16"]


@dataclass(frozen=True)
class Forecast:
    """Milliseconds of a network: with sums as they are, with some of them split, and what nothing can beat."""

    kernels: int
    usual: float
    split: float
    floor: float


def forecast(path: Path, precision: Precision) -> Forecast:
    """Add up what the kernels of a model take."""
    from autotune.tvm_backend.search.tasks import argument_bytes, extract_tasks
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    tasks = extract_tasks(prepared(path, target, precision), target)
    usual = split = floor = 0.0
    for task in tasks:
        kernel = Kernel(task.program, task.spec.gflop, argument_bytes(task.program), precision)
        times = dict(kernel.times_us(target))
        floor += task.spec.weight * kernel.floor_us
        usual += task.spec.weight * times[False]
        split += task.spec.weight * min(times.values())
    return Forecast(sum(task.spec.weight for task in tasks), usual / 1e3, split / 1e3, floor / 1e3)


def prepared(path: Path, target: Any, precision: Precision) -> Any:
    """The tensor programs of a model, as `submit` makes them."""
    from autotune.storage.formats import ShapeBinding
    from autotune.tvm_backend.models.submission import open_source
    from autotune.tvm_backend.passes.prepare import prepare

    module = open_source(path, 1, {}).read(ShapeBinding(), None, gpu=True).module
    return prepare(module, target, precision=precision)


@dataclass(frozen=True)
class Kernel:
    """A tensor program, its operations in 1e9, and the bytes of its arguments."""

    program: Any
    gflop: float
    size: int
    precision: Precision

    @property
    def floor_us(self) -> float:
        peak = TENSOR_GFLOPS.get(self.precision, FP32_GFLOPS)
        return max(self.gflop / peak, self._memory) * 1e6

    @property
    def _memory(self) -> float:
        return self.size / 1e9 / GB_PER_S

    def times_us(self, target: Any) -> Iterator[tuple[bool, float]]:
        """The times with the sum split or not, as often as there are ways."""
        from autotune.tvm_backend.search.split_reduction import extents_of_product, shares_of_sum

        extents = extents_of_product(self.program)
        if extents is None:
            yield False, STARTED_US + self.floor_us
            return
        results, terms = extents
        rates = self._rates(target) if self.precision == "fp32" else {}
        for shares in (1, *shares_of_sum(self.program, target)):
            if rates:
                busy = self.gflop / FP32_GFLOPS / rates.get(shares, 1e-9) * 1e6
            else:
                busy = self._on_tensor_cores_us(results, terms, shares)
            added = 0.0 if shares == 1 else STARTED_US + 2 * 4 * shares * results / 1e9 / L2_GB_PER_S * 1e6
            yield shares > 1, STARTED_US + max(busy, self._memory * 1e6) + added

    def _on_tensor_cores_us(self, results: int, terms: int, shares: int) -> float:
        blocks = math.ceil(results / TILE) * shares
        fill = blocks / (math.ceil(blocks / MULTIPROCESSORS) * MULTIPROCESSORS)
        serial = terms / shares / TERMS_OF_A_STEP * STEP_US
        return max(self.gflop / TENSOR_GFLOPS[self.precision] / REACHED / fill * 1e6, serial)

    def _rates(self, target: Any) -> dict[int, float]:
        """The best estimate as a part of the peak, by the number of blocks that share a sum."""
        from autotune.tvm_backend.search.knobs import Knobs
        from autotune.tvm_backend.search.nest import NestFeatures
        from autotune.tvm_backend.search.scores import estimate

        knobs = Knobs(self.program, target)
        score = estimate(knobs)
        if score is None:
            return {}
        drawn = knobs.space.sample(np.random.default_rng(1), DRAWN)
        scores = score(drawn)
        best: dict[int, float] = {}
        for index, (instructions, _) in enumerate(knobs.sketches()):
            sketch = NestFeatures(self.program, target).sketch(instructions)
            shares = sketch.split[1] if sketch and sketch.split else 1
            best[shares] = max(best.get(shares, 1e-9), *scores[drawn[:, 0] == index])
        return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=["resnet18", "resnet50", "bert_layer"])
    options = parser.parse_args()
    load_for_tuning("cuda", ())
    print("| network | precision | kernels | floor, ms | sums as they are, ms | sums may be split, ms |")
    print("|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks:
            path = models.write(name, Path(folder))
            for precision in get_args(Precision):
                expected = forecast(path, precision)
                times = " | ".join(f"{ms:.3f}" for ms in (expected.floor, expected.usual, expected.split))
                print(f"| {name} | {precision} | {expected.kernels} | {times} |")


if __name__ == "__main__":
    main()
