#!/usr/bin/env python
"""Measure single 3x3 convolutions computed directly and by Winograd's algorithm, and say which of them autotune takes.

    python scripts/bench/measure_winograd.py                     # what `winograd_pays` was calibrated on: 10 minutes
    python scripts/bench/measure_winograd.py 64,64,56 16,64,55   # input channels, output channels, height and width
    python scripts/bench/measure_winograd.py --target 'llvm -mcpu=x86-64-v3'

For each way the best of `--candidates` that the prior proposes is told, in microseconds with warm caches and with
flushed ones: a whole model finds its weights in memory. The last lines say what the best choice for each layer would
save: the geometric mean of the times with it, as a share of those as taken. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import random_layers
from comparison.layer import LIMIT_S, Layer, open_runner
from comparison.tables import markdown

LAYERS = """64,64,56 128,128,28 256,256,14 512,512,7 64,64,112 256,256,28 512,512,14 384,256,13 32,32,112 32,32,56
    32,32,28 48,192,27 32,128,27 64,256,13 16,64,112 16,64,55 24,24,56 48,48,14 32,64,14 96,96,7 160,160,7 16,16,28"""
AGAIN = 3
FLUSHED_RUNS = 20


@dataclass(frozen=True)
class Times:
    """Microseconds of the best candidate of a layer."""

    warm: float
    flushed: float


@dataclass(frozen=True)
class Choice:
    """A layer measured both ways, and whether autotune takes Winograd's algorithm."""

    name: str
    direct: Times
    winograd: Times
    taken: bool

    def cells(self) -> list[str]:
        times = (self.direct.warm, self.direct.flushed, self.winograd.warm, self.winograd.flushed)
        gains = (self.direct.warm / self.winograd.warm, self.direct.flushed / self.winograd.flushed)
        return [
            self.name,
            *(f"{it:.0f}" for it in times),
            *(f"{it:.2f}" for it in gains),
            "yes" if self.taken else "no",
        ]


def main() -> None:
    options = parse()
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    found, heads = [], ["layer", "direct", "flushed", "Winograd", "flushed", "times as fast", "flushed", "taken"]
    for text in options.layers:
        found.append(measured(text, options))
        print(f"{len(found)} of {len(options.layers)}: {' '.join(found[-1].cells())}", file=sys.stderr, flush=True)
    print(markdown(heads, [choice.cells() for choice in found]))
    for state in ("warm", "flushed"):
        print(f"\nThe best choice for each layer, {state}: {saved(found, state):.3f} of the time as taken")


def measured(text: str, options: argparse.Namespace) -> Choice:
    inputs, outputs, side = map(int, text.split(","))
    with tempfile.TemporaryDirectory() as folder:
        model = write(Path(folder) / "layer.onnx", inputs, outputs, side)
        direct, fast = (best(model, options, winograd) for winograd in (False, True))
        return Choice(text, direct, fast, "winograd" in str(program(model, options, winograd=True)))


def saved(choices: Sequence[Choice], state: str) -> float:
    """The geometric mean over the layers of the time of the faster way, as a share of that of the way taken."""
    ways = [(getattr(it.direct, state), getattr(it.winograd, state), it.taken) for it in choices]
    return statistics.geometric_mean([min(one, other) / (other if taken else one) for one, other, taken in ways])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=LAYERS.split(), metavar="INPUTS,OUTPUTS,SIDE")
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def write(path: Path, inputs: int, outputs: int, side: int) -> Path:
    """The layer as an ONNX file."""
    layer = random_layers.Layer(random.Random(0), inputs=[("x", (1, inputs, side, side))])
    layer.node("Conv", ["x", layer.weight("w", outputs, inputs, 3, 3)], "y", pads=[1] * 4)
    layer.save(path)
    return path


def program(model: Path, options: argparse.Namespace, *, winograd: bool) -> Any:
    """The tensor program of the model's convolution, by far its largest."""
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.passes.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks

    made = target(options)
    prepared = prepare(read_model(model, {}).module, made, winograd=winograd)
    return max(extract_tasks(prepared, made), key=lambda task: task.spec.gflop).program


def target(options: argparse.Namespace) -> Any:
    import tvm

    from autotune.tvm_backend.target import resolve_target

    return tvm.target.Target(resolve_target(options.target, options.threads).description)


def best(model: Path, options: argparse.Namespace, winograd: bool) -> Times:
    """That of one way, whether or not autotune would take it."""
    from autotune.storage.tuning_log import TuningLog
    from autotune.tvm_backend.search.knobs import Knobs

    with patch("autotune.tvm_backend.passes.winograd.winograd_pays", return_value=True):
        found = program(model, options, winograd=winograd)
    made, log = target(options), TuningLog(model.with_name(f"{winograd}.jsonl"))
    layer = Layer("", found, made, Knobs(found, made), log, options.threads)
    candidates = proposed(layer, options.candidates)
    trials, _ = layer.measure(candidates)
    order = sorted((trial.median_us, trial.hash) for trial in trials if trial.median_us)
    again = [item for item in candidates if item.hash in [hash for _, hash in order[:AGAIN]]]
    return Times(order[0][0], min(flushed(layer, again)))


def proposed(layer: Layer, count: int) -> Sequence[Any]:
    from autotune import strategies
    from autotune.strategies import samplers
    from autotune.tvm_backend.search.cost_model import prior
    from autotune.tvm_backend.search.propose import Request, propose

    request = Request((), (), count, prior("llvm"), 1)
    return propose(layer.knobs, strategies.get("beam"), samplers.make("greedy", 0.05, True), request).candidates


def flushed(layer: Layer, candidates: Sequence[Any]) -> list[float]:
    """The median of each in microseconds, its weights in memory before every run."""
    from autotune.processes.isolate import isolated
    from autotune.tvm_backend.kernels.build import build_candidate

    with tempfile.TemporaryDirectory() as folder:

        def timer() -> Callable[[Any], list[float]]:
            runner = open_runner(layer.threads)

            def run(item: Any) -> list[float]:
                path = Path(folder) / f"{item.hash}.so"
                build_candidate(item, layer.program, layer.target, path)
                return list(runner.time_flushed(path, item.args, FLUSHED_RUNS))

            return run

        outcomes = [outcome for _, outcome in isolated(candidates, timer, limit_s=LIMIT_S)]
    return [statistics.median(outcome.value) for outcome in outcomes if outcome.kind == "ok"]


if __name__ == "__main__":
    main()
