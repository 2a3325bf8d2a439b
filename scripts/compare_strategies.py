#!/usr/bin/env python
"""Compare search strategies on the layers of Chameleon's table 5, on equal budgets, and how well their models rank.

    python scripts/compare_strategies.py --record --trials 400            # measure a large log for each layer, once
    python scripts/compare_strategies.py --trials 128 --seeds 3           # strategies x samplers x seeds

Measurements are answered from the recorded logs where they are known and made, and recorded, where they are not: so a
second run measures little. `seconds` are those of a search alone; `known` is the share of trials that came from a log.
Every run starts with no trials of its layer, and sees only its own. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")})

# Table 5: network, input channels, output channels, kernel. The paper gives indices of AutoTVM's tasks; those are the
# distinct convolutions in the order of the network, for ResNet-18 C6, C9 and C11 of the AutoTVM paper.
LAYERS = {
    "L1": ("alexnet", 3, 64, 11),
    "L2": ("alexnet", 384, 256, 3),
    "L3": ("vgg16", 3, 64, 3),
    "L4": ("vgg16", 64, 64, 3),
    "L5": ("vgg16", 128, 128, 3),
    "L6": ("resnet18", 128, 128, 3),
    "L7": ("resnet18", 256, 256, 3),
    "L8": ("resnet18", 256, 512, 1),
}
RECORDED_WITH = ("random", "evolutionary", "beam")
CONVERGED = 1.02


def main() -> None:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    layers = [Layer.open(name, options) for name in options.layers]
    if options.record:
        for layer in layers:
            record(layer, options)
        return
    results = [run for layer in layers for run in compare(layer, options)]
    ranks = [rank(layer, options) for layer in layers]
    (options.folder / "result.json").write_text(json.dumps({"runs": results, "ranks": ranks}, indent=1))
    print(table(results))
    print(rank_table(ranks))
    plot(results, options.folder)
    print(f"\nkept in {options.folder}: result.json and one SVG for each layer")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/strategies"), help="logs and results")
    parser.add_argument("--layers", nargs="+", choices=sorted(LAYERS), default=sorted(LAYERS))
    parser.add_argument("--strategies", nargs="+", help="by default all, the user's own included")
    parser.add_argument("--samplers", nargs="+", default=["greedy", "adaptive"])
    parser.add_argument("--seeds", type=int, default=3, help="how many runs of each")
    parser.add_argument("--trials", type=int, default=128, help="budget of a run, or of the record")
    parser.add_argument("--round", type=int, default=16, help="trials in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-prior", action="store_true", help="let no run start from the prior, as in the papers")
    parser.add_argument("--record", action="store_true", help="measure and record, compare nothing")
    options = parser.parse_args()
    if options.strategies is None:
        from autotune import strategies

        options.strategies = list(strategies.names())
    return options


@dataclass
class Layer:
    """A task, its knobs and everything ever measured of it."""

    name: str
    program: Any
    target: Any
    knobs: Any
    log: Any
    threads: int
    folder: Path
    prior: bool
    known: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, options: argparse.Namespace) -> Layer:
        import tvm

        from autotune.storage.tuning_log import TuningLog
        from autotune.tvm_backend.knobs import Knobs
        from autotune.tvm_backend.target import resolve_target

        resolved = resolve_target("llvm", options.threads)
        target = tvm.target.Target(resolved.description)
        program = convolution(name, target)
        log = TuningLog(options.folder / f"{name}-{resolved.key}.jsonl")
        known = {trial.hash: trial for trial in log.trials()}
        knobs, prior = Knobs(program, target), not options.no_prior
        return cls(name, program, target, knobs, log, options.threads, options.folder, prior, known)

    def measure(self, candidates: Sequence[Any]) -> tuple[list[Any], int]:
        """Trials of the candidates, and how many of them were known."""
        new = [item for item in candidates if item.hash not in self.known]
        for candidate, outcome in self._timed(new):
            times = tuple(round(value, 4) for value in outcome.value) if outcome.kind == "ok" else ()
            self._record(candidate, times, outcome)
        return [self.known[item.hash] for item in candidates], len(candidates) - len(new)

    def _timed(self, candidates: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        from autotune.isolate import isolated

        return isolated(candidates, self._timer, limit_s=60.0)

    def _timer(self) -> Any:
        """Builds and times one candidate, in the process that `isolated` forked."""
        from autotune.tvm_backend.build import build_candidate
        from autotune.tvm_backend.run import Runner, Timing, open_device

        os.environ["TVM_NUM_THREADS"] = str(self.threads)
        runner = Runner(open_device("llvm"), Timing(warmup=1, repeats=5, min_repeat_ms=20))
        library = self.folder / f"{self.name}.so"

        def timed(candidate: Any) -> list[float]:
            library.unlink(missing_ok=True)
            build_candidate(candidate, self.program, self.target, library)
            return runner.time(library, candidate.args, None)

        return timed

    def _record(self, candidate: Any, times: tuple[float, ...], outcome: Any) -> None:
        from autotune.storage.formats import Failure, Trial

        failure = None if times else Failure("measure", outcome.kind, outcome.reason)
        trial = Trial(candidate.hash, candidate.trace, candidate.args, times, failure, "compare", 0, time.time())
        self.log.add([trial])
        self.known[trial.hash] = trial


def convolution(name: str, target: Any) -> Any:
    """The tensor program of a layer, with as little fused to it as the network has."""
    import make_models
    import onnx
    from tvm.s_tir import meta_schedule as ms

    from autotune.tvm_backend.model import read_model
    from autotune.tvm_backend.prepare import prepare

    network, *_ = LAYERS[name]
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"compare-{os.getpid()}-{network}.onnx"
    onnx.save(make_models.build(network), str(path))
    try:
        prepared = prepare(read_model(path, {}).module, target)
    finally:
        path.unlink()
    found = [item.dispatched[0] for item in ms.relax_integration.extract_tasks(prepared, target)]
    return min((program for program in found if is_layer(program, name)), key=lambda item: len(arguments(item)))


def is_layer(program: Any, name: str) -> bool:
    """Whether a program convolves with weights of the layer's size and kernel, blocked or not."""
    _, inputs, outputs, kernel = LAYERS[name]
    shapes = [shape for shape in arguments(program)[1:2] if len(shape) >= 4]
    return any(shape[2] == kernel and math.prod(shape) == inputs * outputs * kernel**2 for shape in shapes)


def arguments(program: Any) -> list[list[int]]:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    return [[int(dim) for dim in item.shape] for item in ArgInfo.from_entry_func(program, remove_preproc=True)]


@dataclass
class Tuning:
    """One run: a strategy, a sampler and a seed on a layer, with no trials in the beginning."""

    layer: Layer
    strategy: str
    sampler: str
    seed: int
    size: int
    trials: list[Any] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, Any] = field(default_factory=dict)

    def spend(self, budget: int) -> None:
        """Rounds until the budget is spent or the space is exhausted."""
        while len(self.trials) < budget:
            started = time.monotonic()
            found = self._propose(min(self.size, budget - len(self.trials)))
            seconds = time.monotonic() - started
            if not found.candidates:
                return
            trials, known = self.layer.measure(found.candidates)
            self.trials += trials
            told = {"steps": found.steps, "replayed": found.replayed, "invalid": found.invalid}
            self.rounds.append({"seconds": seconds, "known": known, "size": len(trials), **told,
                                "repeated": found.repeated})  # fmt: skip

    def _propose(self, count: int) -> Any:
        from autotune import strategies
        from autotune.strategies import samplers
        from autotune.tvm_backend import evolve
        from autotune.tvm_backend.evolve_knobs import evolutionary
        from autotune.tvm_backend.propose import Proposal, Request, propose

        model, seed = self._model(), 1000 * self.seed + len(self.rounds) + 1
        evolution = evolve.Evolution(min(96, max(24, 6 * count)), 3, 24, 0.85, 0.05)
        layer, knobs = self.layer, self.layer.knobs
        if (self.strategy, self.sampler) == ("evolutionary", "greedy"):
            found = evolve.propose(layer.program, layer.target, self.trials, count, model, evolution, seed)
            return Proposal(found, evolution.generations if model else 0)
        make = evolutionary(knobs, self.trials, model, evolution)
        strategy = make if self.strategy == "evolutionary" else strategies.get(self.strategy)
        sampler = samplers.make(self.sampler, 0.05, synthesis=True)
        return propose(knobs, strategy, sampler, Request(self.trials, (), count, model, seed))

    def _model(self) -> Any:
        """The cost model on the trials of this run, as the train stage would have it."""
        from autotune.tvm_backend.cost_model import CostModel, relative_throughput
        from autotune.tvm_backend.prior import prior

        start = prior("llvm") if self.layer.prior else None
        if not any(trial.best_us for trial in self.trials):
            return start
        features(self.layer, self.trials, self.rows)
        labels = relative_throughput(trial.best_us for trial in self.trials)
        return CostModel.train([self.rows[trial.hash] for trial in self.trials], labels, start)

    def summary(self) -> dict[str, Any]:
        best = list(itertools.accumulate((trial.best_us or float("inf") for trial in self.trials), min))
        ends = list(itertools.accumulate(item["size"] for item in self.rounds))
        spent = list(itertools.accumulate(item["seconds"] for item in self.rounds))
        close = next((at + 1 for at, value in enumerate(best) if value <= CONVERGED * best[-1]), len(best))
        replayed = max(1, sum(item["replayed"] for item in self.rounds))
        return {
            "layer": self.layer.name, "strategy": self.strategy, "sampler": self.sampler, "seed": self.seed,
            "best_us": best[-1], "best_over_trials": best, "rounds_end": ends, "search_s_over_rounds": spent,
            "trials": len(best), "to_converge": close, "failed": sum(trial.best_us is None for trial in self.trials),
            "steps_per_round": statistics.mean(item["steps"] for item in self.rounds),
            "search_s_per_round": statistics.mean(item["seconds"] for item in self.rounds),
            "invalid": sum(item["invalid"] for item in self.rounds) / replayed,
            "repeated": sum(item["repeated"] for item in self.rounds) / replayed,
            "known": sum(item["known"] for item in self.rounds) / max(1, len(best)),
        }  # fmt: skip


def features(layer: Layer, trials: Sequence[Any], rows: dict[str, Any]) -> None:
    """Adds the features of the trials that have none yet."""
    from autotune.tvm_backend.features import Features

    missing = [trial for trial in trials if trial.hash not in rows]
    if missing:
        found = Features(layer.program, layer.target).of_trials(missing)
        rows.update({trial.hash: row for trial, row in zip(missing, found, strict=True)})


def record(layer: Layer, options: argparse.Namespace) -> None:
    """Fill the log with what three searches find, a third of the budget each."""
    for strategy in RECORDED_WITH:
        tuning = Tuning(layer, strategy, "greedy", seed=0, size=options.round)
        tuning.spend(options.trials // len(RECORDED_WITH))
        best = tuning.summary()["best_us"]
        print(f"{layer.name}: {strategy} {len(tuning.trials)} trials, best {best:.1f} us", flush=True)


def compare(layer: Layer, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed, strategy, sampler in itertools.product(range(1, options.seeds + 1), options.strategies, options.samplers):
        tuning = Tuning(layer, strategy, sampler, seed, options.round)
        tuning.spend(options.trials)
        found = tuning.summary()
        told = f"best {found['best_us']:.1f} us, {found['trials']} trials, {found['search_s_per_round']:.2f} s a round"
        print(f"{layer.name} {strategy}/{sampler} seed {seed}: {told}", file=sys.stderr, flush=True)
        yield found


def rank(layer: Layer, options: argparse.Namespace) -> dict[str, Any]:
    """How well draft and features rank what they have not seen: trained on half of the log, tested on the other."""
    import numpy as np
    from scipy.stats import spearmanr

    from autotune.strategies.base import Measured
    from autotune.strategies.space import as_array
    from autotune.tvm_backend.cost_model import CostModel, relative_throughput
    from autotune.tvm_backend.draft import Draft
    from autotune.tvm_backend.prior import prior

    mapped = [(trial, layer.knobs.find(trial.trace)) for trial in layer.log.trials()]
    pairs = [(trial, configuration) for trial, configuration in mapped if configuration is not None]
    if len(pairs) < 20:
        return {"layer": layer.name, "trials": len(pairs)}
    order = np.random.default_rng(1).permutation(len(pairs))
    train, test = ([pairs[at] for at in half] for half in np.array_split(order, 2))
    rows: dict[str, Any] = {}
    features(layer, [trial for trial, _ in pairs], rows)
    draft = Draft(layer.knobs.space, [Measured(configuration, trial.best_us) for trial, configuration in train])
    model = CostModel.train(
        [rows[trial.hash] for trial, _ in train], relative_throughput(trial.best_us for trial, _ in train)
    )
    truth, unseen = np.array(relative_throughput(trial.best_us for trial, _ in test)), [rows[t.hash] for t, _ in test]
    guesses = {
        "draft": draft(as_array((configuration for _, configuration in test), len(layer.knobs.space.knobs))),
        "features": model.score(unseen),
    }
    if (known := prior("llvm")) is not None:
        guesses["prior"] = known.score(unseen)
    told: dict[str, Any] = {"layer": layer.name, "trials": len(pairs), "mapped": len(pairs) / max(1, len(mapped))}
    for name, guess in guesses.items():
        told[name] = {"spearman": float(spearmanr(guess, truth).statistic), "top10_recall": recall(guess, truth, 0.1)}
    return told


def recall(guess: Any, truth: Any, share: float) -> float:
    """The part of the true best that is among as many guessed best."""
    import numpy as np

    k = max(1, round(share * len(truth)))
    return len(set(np.argsort(-guess)[:k].tolist()) & set(np.argsort(-truth)[:k].tolist())) / k


COLUMNS = ("best_us", "to_converge", "trials", "steps_per_round", "search_s_per_round", "invalid", "repeated", "known")


def table(results: Sequence[dict[str, Any]]) -> str:
    """Mean and, for the best time, spread over seeds."""
    lines = [f"{'layer':<6}{'strategy/sampler':<24}{'spread':>9}" + "".join(f"{name:>19}" for name in COLUMNS)]
    by = sorted(results, key=lambda run: (run["layer"], run["strategy"], run["sampler"]))
    for (layer, *way), group in itertools.groupby(by, key=lambda run: (run["layer"], run["strategy"], run["sampler"])):
        runs = list(group)
        spread = statistics.stdev(run["best_us"] for run in runs) if len(runs) > 1 else float("nan")
        means = [statistics.mean(run[name] for run in runs) for name in COLUMNS]
        lines.append(f"{layer:<6}{'/'.join(way):<24}{spread:9.2f}" + "".join(f"{value:19.3f}" for value in means))
    return "\n".join(lines)


def rank_table(ranks: Sequence[dict[str, Any]]) -> str:
    kinds = ("draft", "features", "prior")
    heads = "".join(f"{f'{kind} rho':>14}{'top':>7}" for kind in kinds)
    lines = [f"\n{'layer':<6}{'trials':>7}{heads}"]
    for item in ranks:
        if "draft" not in item:
            lines.append(f"{item['layer']:<6}{item['trials']:7}  too few to rank")
            continue
        cells = "".join(f"{item[kind]['spearman']:14.3f}{item[kind]['top10_recall']:7.3f}" for kind in kinds)
        lines.append(f"{item['layer']:<6}{item['trials']:7}{cells}")
    return "\n".join(lines)


def plot(results: Sequence[dict[str, Any]], folder: Path) -> None:
    """Best latency over trials and over seconds of search as SVG, one for each layer; every seed is a line."""
    from matplotlib import pyplot

    for layer in sorted({run["layer"] for run in results}):
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
        runs = [run for run in results if run["layer"] == layer]
        names = sorted({run["strategy"] for run in runs})
        for run in runs:
            best = run["best_over_trials"]
            points = [best[end - 1] for end in run["rounds_end"]]
            label = f"{run['strategy']}/{run['sampler']}" if run["seed"] == 1 else None
            style = "--" if run["sampler"] == "adaptive" else "-"
            look = {"color": f"C{names.index(run['strategy'])}", "linestyle": style, "alpha": 0.7, "label": label}
            axes[0].plot(range(1, len(best) + 1), best, **look)
            axes[1].plot(run["search_s_over_rounds"], points, **look)
        for axis, what in zip(axes, ("trials", "seconds of search"), strict=True):
            axis.set(title=f"{layer}: best, us", xlabel=what, yscale="log")
        axes[1].legend(fontsize="x-small", loc="upper right")
        figure.savefig(folder / f"{layer}.svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
