#!/usr/bin/env python
"""Measure single convolutions computed over their image and over a row of pixels, and say how autotune computes them.

    python scripts/measure_pixel_tiles.py --target 'llvm -mcpu=x86-64-v3'   # 5 minutes
    python scripts/measure_pixel_tiles.py 512,1000,13,1,1   # channels in and out, output size, kernel, stride

For each way the best of `--candidates` that the prior proposes is told, in microseconds with warm caches and with
flushed ones. A layer that autotune computes over its image has one way. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import random_layers
from comparison.layer import Layer
from comparison.tables import markdown
from measure_winograd import AGAIN, Times, flushed, proposed, target

LAYERS = """320,1280,7,1,1 960,160,7,1,1 256,512,7,3,2 512,512,7,3,1 512,1000,13,1,1 768,192,17,1,1 64,192,27,5,1
    96,576,14,1,1"""
_BEFORE = 6  # the last graph revision without rows of pixels


def main() -> None:
    options = parse()
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    rows, heads = [], ["layer", "image", "flushed", "row", "flushed", "times as fast", "flushed", "pixels in the row"]
    for text in options.layers:
        with tempfile.TemporaryDirectory() as folder:
            model = write(Path(folder) / "layer.onnx", *map(int, text.split(",")))
            rows.append([text, *compare(model, options)])
        print(f"{len(rows)} of {len(options.layers)}: {' '.join(rows[-1])}", file=sys.stderr, flush=True)
    print(markdown(heads, rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=LAYERS.split(), metavar="INPUTS,OUTPUTS,SIZE,KERNEL,STRIDE")
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def write(path: Path, inputs: int, outputs: int, size: int, kernel: int, stride: int) -> Path:
    """The layer as an ONNX file."""
    layer = random_layers.Layer(random.Random(0), inputs=[("x", (1, inputs, size * stride, size * stride))])
    weight = layer.weight("w", outputs, inputs, kernel, kernel)
    layer.node("Conv", ["x", weight], "y", pads=[kernel // 2] * 4, strides=[stride] * 2)
    layer.save(path)
    return path


def compare(model: Path, options: argparse.Namespace) -> list[str]:
    """The cells of a layer after its name."""
    from autotune.storage.formats import GRAPH_REVISION

    image = best(model, options, _BEFORE)
    pixels = row_of(program(model, options, GRAPH_REVISION))
    if not pixels:
        return [f"{image.warm:.0f}", f"{image.flushed:.0f}", "", "", "", "", ""]
    row = best(model, options, GRAPH_REVISION)
    times = [f"{time:.0f}" for way in (image, row) for time in (way.warm, way.flushed)]
    return [*times, f"{image.warm / row.warm:.2f}", f"{image.flushed / row.flushed:.2f}", str(pixels)]


def program(model: Path, options: argparse.Namespace, revision: int) -> Any:
    """The tensor program of the model's convolution, by far its largest."""
    from autotune.tvm_backend.graph.model import read_model
    from autotune.tvm_backend.graph.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    made = target(options)
    prepared = prepare(read_model(model, {}).module, made, winograd=False, revision=revision)
    return max(extract_tasks(prepared, made), key=lambda task: task.spec.gflop).program


def row_of(program: Any) -> int:
    """How many pixels the row of a convolution has; 0 if it is computed over its image."""
    sums = [item for item in program["main"].body.block.alloc_buffers if item.name == "conv2d_NCHWc"]
    return int(sums[0].shape[2]) if sums and len(sums[0].shape) == 4 else 0


def best(model: Path, options: argparse.Namespace, revision: int) -> Times:
    """That of one way."""
    from autotune.storage.tuning_log import TuningLog
    from autotune.tvm_backend.search.knobs import Knobs

    found, made = program(model, options, revision), target(options)
    layer = Layer("", found, made, Knobs(found, made), TuningLog(model.with_name(f"{revision}.jsonl")), options.threads)
    candidates = proposed(layer, options.candidates)
    trials, _ = layer.measure(candidates)
    order = sorted((trial.median_us, trial.hash) for trial in trials if trial.median_us)
    again = [item for item in candidates if item.hash in [hash for _, hash in order[:AGAIN]]]
    return Times(order[0][0], min(flushed(layer, again)))


if __name__ == "__main__":
    main()
