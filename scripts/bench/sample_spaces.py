#!/usr/bin/env python
"""Build and time every configuration of a grid in the design space of layers, so that searches can be replayed on it.

    python scripts/bench/sample_spaces.py --layers L6 L7 L8 --minutes 10

The layers are those of Chameleon's table 5 (Ahn et al., ICLR 2020). A whole design space has 10^6 to 10^12
configurations. The grid has one sketch of it, and a few values of each knob: those of the best of 32 configurations
that are drawn first, and others that are drawn. Each configuration is built and timed as in a job, with one thread, in
an order that is drawn, too, until there are enough: the file has a sample of the grid. One that gives the same program
as an earlier one has its time. The result is `NAME_T4.json.gz` in the format T4, in which a tile is a list. A later
call goes on where an earlier one ended, with the same grid or a larger one. It takes a second a configuration, on a
machine that should be idle, and longer for VGG-16's layers.
"""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "1")

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from autotune.processes.children import ItemResult
from autotune.processes.isolate import isolated
from autotune.storage.formats import Candidate
from autotune.strategies.space import Configuration
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device
from autotune.tvm_backend.load import load_for_tuning
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Validator
from autotune.tvm_backend.search.tasks import extract_programs
from autotune.tvm_backend.target import resolve_target, tvm_target

SPACES = Path(__file__).parent / "spaces"
DRAWN_FIRST = 32
LIMIT_S = 10.0
TIMING = Timing(warmup=0, repeats=3, min_repeat_ms=5)
# A program is built and timed by one process, in groups after which what was measured is written.
GROUP = 64


@dataclass(frozen=True)
class Layer:
    """A convolution with a bias and a ReLU: AlexNet's, VGG-16's and ResNet-18's of table 5."""

    channels: int
    filters: int
    side: int
    kernel: int
    stride: int = 1

    @property
    def pad(self) -> int:
        """As in the networks: AlexNet's first layer has 2, the others keep the size."""
        return 2 if self.kernel == 11 else self.kernel // 2

    def model(self) -> onnx.ModelProto:
        """Return the layer as a model."""
        shape = (self.filters, self.channels, self.kernel, self.kernel)
        arrays = {"w": np.zeros(shape, np.float32), "b": np.zeros(self.filters, np.float32)}
        weights = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        pads = [self.pad] * 4
        strides = [self.stride] * 2
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=pads, strides=strides),
            helper.make_node("Relu", ["c"], ["y"]),
        ]
        image = (1, self.channels, self.side, self.side)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, "layer", inputs, outputs, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


LAYERS = {
    "L1": Layer(3, 64, 224, 11, 4),
    "L2": Layer(384, 256, 13, 3),
    "L3": Layer(3, 64, 224, 3),
    "L4": Layer(64, 64, 224, 3),
    "L5": Layer(128, 128, 112, 3),
    "L6": Layer(128, 128, 28, 3),
    "L7": Layer(256, 256, 14, 3),
    "L8": Layer(256, 512, 14, 1, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", choices=sorted(LAYERS), default=sorted(LAYERS))
    parser.add_argument("--trials", type=int, default=2000, help="configurations of a layer, or some more")
    parser.add_argument("--minutes", type=float, default=20.0, help="time of a layer")
    parser.add_argument("--output", type=Path, default=SPACES)
    options = parser.parse_args()
    load_for_tuning("llvm")
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.layers:
        sample(name, options.output / f"{name}_T4.json.gz", options.trials, time.monotonic() + 60 * options.minutes)


def sample(name: str, path: Path, trials: int, until: float) -> None:
    """Measure the configurations of a layer that are not in its file yet, and write them."""
    bench = LayerBench(LAYERS[name])
    results = read(path) or bench.best_drawn()
    done = {tuple(entry["index"]) for entry in results}
    missing = [item for item in bench.grid(tuple(results[0]["index"]), trials) if item not in done]
    began = time.monotonic()
    for first in range(0, len(missing), GROUP):
        if time.monotonic() > until or len(results) >= trials:
            break
        results += bench.measure(missing[first : first + GROUP])
        write(path, results)
        rate = (first + GROUP) / (time.monotonic() - began)
        print(f"{name}: {len(results)} of {trials}, {rate:.1f}/s", file=sys.stderr, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with gzip.open(path, "rt") as file:
        return list(json.load(file)["results"])


def write(path: Path, results: Sequence[dict[str, Any]]) -> None:
    document = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results}
    part = path.with_suffix(".part")
    with gzip.open(part, "wt") as file:
        json.dump(document, file, separators=(",", ":"))
    part.replace(path)


class LayerBench:
    """Builds and times configurations of a layer on this machine."""

    def __init__(self, layer: Layer) -> None:
        self.target = tvm_target(resolve_target("llvm", 1).description)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "layer.onnx")
            onnx.save(layer.model(), path)
            prepared = prepare(read_model(path, {}).module, self.target)
        programs = extract_programs(prepared, self.target).values()
        self.program = max(programs, key=lambda program: Knobs(program, self.target).space.size)
        self.knobs = Knobs(self.program, self.target)
        self._times: dict[str, ItemResult] = {}
        self._valid_ones: dict[Configuration, bool] = {}

    def grid(self, best: Configuration, size: int) -> list[Configuration]:
        """Return the configurations of the grid around one, in an order that is drawn: `size` valid ones, or more."""
        rng = np.random.default_rng(0)
        kept = [[index] for index in best]
        space = self.knobs.space
        wide = [place for place in range(1, len(best)) if space.mask[best[0], place] and space.sizes[place] > 1]
        valid: list[Configuration] = []
        while len(valid) < size:
            growing = [place for place in wide if len(kept[place]) < space.sizes[place]]
            place = min(growing, key=lambda place: (len(kept[place]), rng.random()))
            others = sorted(set(range(int(space.sizes[place]))) - set(kept[place]))
            kept[place].append(int(rng.choice(others)))
            if np.prod([len(values) for values in kept]) >= size:
                valid = self._valid(kept)
        return [valid[place] for place in rng.permutation(len(valid))]

    def best_drawn(self) -> list[dict[str, Any]]:
        """Return the result of the best of some that are drawn from the whole design space."""
        rows = self.knobs.space.sample(np.random.default_rng(0), 20 * DRAWN_FIRST)
        drawn = [tuple(row) for row in rows.tolist()]
        applied = filter(None, map(self.knobs.apply, dict.fromkeys(drawn)))
        few = [next(applied).configuration for _ in range(DRAWN_FIRST)]
        results = self.measure(list(dict.fromkeys(few)))
        timed = [entry for entry in results if entry["invalidity"] == "correct"]
        return [min(timed, key=lambda entry: entry["measurements"][0]["value"])]

    def _valid(self, kept: Sequence[Sequence[int]]) -> list[Configuration]:
        rows = np.stack(np.meshgrid(*kept, indexing="ij"), axis=-1).reshape(-1, len(kept))
        return [item for item in map(tuple, rows.tolist()) if self._is_valid(item)]

    def _is_valid(self, item: Configuration) -> bool:
        """Whether a schedule has just this configuration. Asking takes a millisecond, so that answers are kept."""
        if item not in self._valid_ones:
            applied = self.knobs.apply(item)
            self._valid_ones[item] = applied is not None and applied.configuration == item
        return self._valid_ones[item]

    def measure(self, configurations: Sequence[Configuration]) -> list[dict[str, Any]]:
        """Return results in T4 for configurations."""
        validator = Validator(self.knobs, None, ())
        asked = zip(configurations, validator.validate(configurations), strict=True)
        candidates = {item: validator.candidate(valid.configuration) for item, valid in asked if valid is not None}
        new = [item for item in candidates.values() if item.hash not in self._times]
        self._times |= {item.hash: result for item, result in isolated(new, self._timer, limit_s=LIMIT_S)}
        return [self._result(item, self._times[candidate.hash]) for item, candidate in candidates.items()]

    def _timer(self) -> Callable[[Candidate], dict[str, Any]]:
        runner = Runner(open_device("llvm"), TIMING)
        best = min((min(result.value["us"]) for result in self._times.values() if result.kind == "ok"), default=None)

        def timed(candidate: Candidate) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder, "kernel.so")
                began = time.monotonic()
                build_candidate(candidate, self.program, self.target, library)
                built = time.monotonic()
                times = runner.time(library, candidate.args, best)
                return {"us": times, "build_s": built - began, "measure_s": time.monotonic() - built}

        return timed

    def _result(self, item: Configuration, outcome: ItemResult) -> dict[str, Any]:
        knobs = list(zip(self.knobs.space.knobs, item, self.knobs.space.used[item[0]], strict=True))[1:]
        ok = outcome.kind == "ok"
        spent = outcome.value if ok else {"us": [], "build_s": LIMIT_S, "measure_s": 0.0}
        us = round(statistics.median(spent["us"]), 2) if ok else "RuntimeFailedConfig"
        return {
            "index": item,
            "configuration": {knob.name: knob.values[index] for knob, index, used in knobs if used},
            "times": {"compilation": round(1e3 * spent["build_s"], 1), "framework": round(1e3 * spent["measure_s"], 1)},
            "invalidity": "correct" if ok else "runtime",
            "measurements": [{"name": "time", "value": us / 1e3 if ok else us, "unit": "ms"}],
            "objectives": ["time"],
        }


if __name__ == "__main__":
    main()
