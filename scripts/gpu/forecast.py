#!/usr/bin/env python
"""Forecast on paper how long networks take on an H100, for a first real run to confirm or refute. Needs no GPU.

    python scripts/gpu/forecast.py resnet18 resnet50 bert_layer

A product takes what `search/occupancy.py` and `search/tensor_cores.py` estimate for the best of DRAWN random schedules,
and every other kernel STARTED_US and its bytes from memory. Attention that is one kernel is left out. Every network is
forecast with sums split among blocks and without. The floor is what no kernel can beat: all operations at the peak of
the GPU, or all bytes from memory. The peaks are those of NVIDIA's data sheet of the H100 SXM.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import models

from autotune.tvm_backend.load import load_for_tuning

MULTIPROCESSORS = 132
FP32_GFLOPS = 67e3
TENSOR_GFLOPS = {"tf32": 494.5e3, "fp16": 989e3, "bf16": 989e3}
GB_PER_S = 3350.0
STARTED_US = 2.0  # of a kernel in a graph, from the end of the one before
DRAWN = 3000

Precision = Literal["fp32", "tf32", "fp16", "bf16"]


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
    module = prepared(path, target, precision)
    tasks = extract_tasks(module, target)
    usual = split = floor = 0.0
    for task in tasks:
        kernel = Kernel(task.program, task.spec.gflop, argument_bytes(task.program), precision)
        times = list(kernel.times_us(target))
        floor += task.spec.weight * kernel.floor_us
        usual += task.spec.weight * min(us for is_split, us in times if not is_split)
        split += task.spec.weight * min(us for _, us in times)
    return Forecast(kernels_of(module), usual / 1e3, split / 1e3, floor / 1e3)


def kernels_of(module: Any) -> int:
    """How many kernels a prepared model has, with one for each sum that is not split, and none for a reshape."""
    from tvm import relax

    from autotune.tvm_backend.expressions import kernel_calls

    programs = [module[call.args[0]] for calls in kernel_calls(module) for call in calls]
    return sum(not relax.analysis.has_reshape_pattern(program) for program in programs)


def prepared(path: Path, target: Any, precision: Precision) -> Any:
    """The tensor programs of a model, as `submit` makes them."""
    from autotune.processes.messages import ImportRequest
    from autotune.storage.formats import ShapeBinding
    from autotune.tvm_backend.lowering import prepare
    from autotune.tvm_backend.models.sources import open_source

    request = ImportRequest(str(path), "cuda", 1, (0,), "", (ShapeBinding(),), {}, True, None)
    module = open_source(request).read(ShapeBinding(), None, gpu=True).module
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
        for shares, speed in self._speeds(target).items():
            yield shares > 1, max(self._memory, self.gflop / FP32_GFLOPS / speed) * 1e6
        yield False, 1e9 if self._product else STARTED_US + self.floor_us

    @cached_property
    def _product(self) -> bool:
        from autotune.tvm_backend.search.split_reduction import extents_of_product

        return extents_of_product(self.program) is not None

    def _speeds(self, target: Any) -> dict[int, float]:
        """The best estimate as a part of the peak in fp32, by the number of blocks that share a sum."""
        from autotune.tvm_backend.search.knobs import Knobs
        from autotune.tvm_backend.search.scores import estimate
        from autotune.tvm_backend.search.tensor_cores import shares_of

        knobs = Knobs(self.program, target)
        score = estimate(knobs)
        if score is None:
            return {}
        drawn = knobs.space.sample(np.random.default_rng(1), DRAWN)
        scores = score(drawn)
        best: dict[int, float] = {}
        for index, (instructions, _) in enumerate(knobs.sketches()):
            shares = shares_of(instructions)
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
