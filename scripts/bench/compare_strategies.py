#!/usr/bin/env python
"""Compare search strategies on the layers of Chameleon's table 5, on equal budgets, and how well their models rank.

    python scripts/bench/compare_strategies.py      # all strategies x both samplers x three seeds: hours
    python scripts/bench/compare_strategies.py --layers L6 L8 --ways beam/greedy annealing/greedy --trials 32
    python scripts/bench/compare_strategies.py --prior --ways beam/greedy evolutionary/greedy
    python scripts/bench/compare_strategies.py --prior --report      # the tables and plots of these runs again

A run that ended is kept in the folder's runs.jsonl and not made again, so a comparison that was interrupted goes on;
what any run has measured, the layer's log answers. All layers and ways have one seed before any has the next.
Every run starts with no trials of its layer, and sees only its own. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from comparison.layer import LAYERS, Layer
from comparison.ranks import rank
from comparison.tables import read, write
from comparison.tuning import RunSettings, Tuning

from autotune.storage.formats import from_json

os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")})


def main() -> None:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    layers = {name: Layer.open(name, options.folder, options.threads) for name in options.layers}
    kept, wanted = options.folder / "runs.jsonl", list(ways(options))
    if not options.report:
        compare(layers, wanted, kept)
    runs = [run for run in read(kept) if from_json(RunSettings, run) in wanted]
    if not runs:
        raise SystemExit(f"{kept} has none of these runs")
    best = {name: layer.best_us for name, layer in layers.items()}
    print(write(runs, best, [rank(layer) for layer in layers.values()], options.folder))
    print(f"\n{len(runs)} runs of {kept}; the plots are beside it")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/strategies"), help="logs, runs, plots")
    parser.add_argument("--layers", nargs="+", choices=sorted(LAYERS), default=sorted(LAYERS))
    parser.add_argument("--ways", nargs="+", metavar="STRATEGY/SAMPLER", help="all, the user's own included")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs of each")
    parser.add_argument("--trials", type=int, default=64, help="budget of a run")
    parser.add_argument("--round", type=int, default=16, help="trials in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prior", action="store_true", help="start from autotune's prior, not from nothing")
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args()


def ways(options: argparse.Namespace) -> Iterator[RunSettings]:
    from autotune import strategies

    named = options.ways or [f"{name}/{sampler}" for name in strategies.names() for sampler in ("greedy", "adaptive")]
    for seed, layer, name in itertools.product(range(1, options.seeds + 1), options.layers, named):
        strategy, _, sampler = name.partition("/")
        yield RunSettings(layer, strategy, sampler or "greedy", seed, options.prior, options.trials, options.round)


def compare(layers: dict[str, Layer], wanted: list[RunSettings], kept: Path) -> None:
    """Make the runs that are not there yet."""
    there = {from_json(RunSettings, run) for run in read(kept)}
    missing = [way for way in wanted if way not in there]
    for number, way in enumerate(missing, 1):
        layer = layers[way.layer]
        spent, measured = layer.spent_s, layer.measured
        tuning = Tuning(layer, way)
        tuning.spend()
        told = {"measure_s": layer.spent_s - spent, "measured": layer.measured - measured}
        found = {**tuning.summary(), **told}
        with kept.open("a") as file:
            file.write(json.dumps(found) + "\n")
        say = f"best {found['best_over_trials'][-1]:.1f} us after {len(tuning.trials)} trials"
        print(f"{number} of {len(missing)}: {way.layer} {way.name} seed {way.seed}: {say}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
