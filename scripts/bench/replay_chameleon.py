#!/usr/bin/env python
"""Do the claims of Chameleon's paper hold at its budget, on spaces of which every configuration was measured?

    python scripts/bench/replay_chameleon.py FILE... --seeds 20

(Ahn et al., ICLR 2020, section 4.) A search has 16 rounds of 64 measurements, 1,000 in all, from nothing: AutoTVM's
setting is `annealing/greedy`. As in the paper, the agent is kept from round to round. Measurements cost what the files
say, searches what they took here: CPU time, for which each process should have a core to itself. It takes some seconds
a search.

Columns: steps of a round, measurements of a search, seconds of measuring and of searching, the best time over the
optimum, and the measurements after which a search comes to where the worst one of `annealing/greedy` ends. Each is a
geometric mean over files and seeds. Then the claims, as ratios with 95% intervals from 1,000 bootstraps over seeds.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import replay_search
from replay_search import Learner, Recorded, view
from side_by_side import side_by_side

from autotune import strategies
from autotune.strategies import samplers
from autotune.strategies.chameleon import Agent, ChameleonSearch
from autotune.strategies.space import Floats, Measured, View
from autotune.strategies.strategy import Strategy

COUNT = 64
BOOTSTRAPS = 1000
WAYS = ("annealing/greedy", "chameleon/greedy", "annealing/adaptive", "chameleon/adaptive")
# What a claim compares: the first way is to have less of the figure.
CLAIMS = (
    ("exploration: steps of a round (2.88)", "steps", "annealing/greedy", "chameleon/greedy"),
    ("sampling, with annealing: measurements (1.98)", "measurements", "annealing/greedy", "annealing/adaptive"),
    ("sampling, with the agent: measurements (2.33)", "measurements", "chameleon/greedy", "chameleon/adaptive"),
    ("sampling, with annealing: measurements to the goal", "needed", "annealing/greedy", "annealing/adaptive"),
    ("sampling, with the agent: measurements to the goal", "needed", "chameleon/greedy", "chameleon/adaptive"),
    ("sampling, with annealing: time of the best (1.135)", "best", "annealing/greedy", "annealing/adaptive"),
    ("sampling, with the agent: time of the best (1.19)", "best", "chameleon/greedy", "chameleon/adaptive"),
    ("both: seconds of measuring and searching (4.45)", "seconds", "annealing/greedy", "chameleon/adaptive"),
    ("both: time of the best (1.056)", "best", "annealing/greedy", "chameleon/adaptive"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", help="files in T4")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--processes", type=int, default=1, help="searches that are replayed side by side")
    options = parser.parse_args()
    spaces = [replay_search.read(path) for path in options.paths]
    figures = {way: by_figure(replays(spaces, way, options)) for way in WAYS}
    goals = [max(run) for run in figures["annealing/greedy"]["best"]]
    for way in WAYS:
        figures[way]["needed"] = needed(figures[way], goals)
    print_ways(figures)
    print_claims(figures)


@dataclass(frozen=True)
class Run:
    """A search: its steps in all, its rounds, seconds of searching and of measuring, and the best time so far."""

    steps: int
    rounds: int
    search_s: float
    measure_s: float
    best: Floats


Figures = dict[str, list[list[float]]]


def replays(spaces: Sequence[Recorded], way: str, options: argparse.Namespace) -> list[list[Run]]:
    """Replay the searches of a way with each seed on each space, [spaces, seeds]."""
    one = lambda space, seed: replay(spaces[space], way, seed, options.rounds)  # noqa: E731
    return side_by_side(one, len(spaces), options.seeds, options.processes)


def replay(recorded: Recorded, way: str, seed: int, rounds: int) -> Run:
    """Replay a search; times are over that of the optimum."""
    name, _, sampler = way.partition("/")
    make = kept_agent() if name == "chameleon" else strategies.get(name)
    picks = samplers.make(sampler, replay_search.EPSILON, synthesis=True)
    learner = Learner(recorded)
    trials: list[Measured] = []
    steps = 0
    began = time.process_time()
    for turn in range(rounds):
        made = make(view(recorded, trials, learner.score(trials)), 1000 * seed + turn)
        batch = made.propose(COUNT, picks)
        steps += made.steps
        times = [recorded.us[recorded.rows[item]] for item in batch]
        trials += [Measured(item, None if math.isnan(us) else us) for item, us in zip(batch, times, strict=True)]
    search_s = time.process_time() - began
    rows = [recorded.rows[trial.configuration] for trial in trials]
    best = np.fmin.accumulate(recorded.us[rows]) / recorded.ascending[0]
    return Run(steps, rounds - 1, search_s, float(recorded.seconds[rows].sum()), best)


def kept_agent() -> Callable[[View, int], Strategy]:
    """Return what makes the strategy with the same agent in each round."""
    agents: list[Agent] = []

    class Kept(ChameleonSearch):
        def agent(self) -> Agent:
            if not agents:
                agents.append(super().agent())
            return agents[0]

    return Kept


def by_figure(runs: Sequence[Sequence[Run]]) -> Figures:
    """Return each figure of the searches, [files][seeds]. The first round, which is random, has no steps."""
    figures: dict[str, Callable[[Run], object]] = {
        "steps": lambda run: run.steps / run.rounds,
        "measurements": lambda run: len(run.best),
        "measure_s": lambda run: run.measure_s,
        "search_s": lambda run: run.search_s,
        "seconds": lambda run: run.measure_s + run.search_s,
        "best": lambda run: run.best[-1],
        "curve": lambda run: run.best,
    }
    return {name: [[figure(run) for run in made] for made in runs] for name, figure in figures.items()}  # type: ignore[misc]


def needed(figures: Figures, goals: Sequence[float]) -> list[list[float]]:
    """Return the measurements after which each search came to the goal of its file; all, if it did not."""
    return [
        [float(min(len(curve), 1 + np.count_nonzero(np.asarray(curve) > goal))) for curve in curves]
        for curves, goal in zip(figures["curve"], goals, strict=True)
    ]


def print_ways(figures: dict[str, Figures]) -> None:
    columns = ("steps", "measurements", "measure_s", "search_s", "best", "needed")
    print(f"| | {' | '.join(columns)} |")
    print("| --- " * (len(columns) + 1) + "|")
    for way, values in figures.items():
        print(f"| {way} | {' | '.join(f'{mean(values[column]):.4g}' for column in columns)} |", flush=True)


def print_claims(figures: dict[str, Figures]) -> None:
    print("\n| claim (the paper's ratio) | here |\n| --- | --- |")
    for claim, figure, before, after in CLAIMS:
        one = figures[before][figure]
        other = figures[after][figure]
        low, high = interval(one, other)
        print(f"| {claim} | {mean(one) / mean(other):.2f} ({low:.2f} to {high:.2f}) |")


def mean(values: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean over seeds, and then over files."""
    return float(np.exp(np.mean([np.log(seeds).mean() for seeds in values])))


def interval(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95% interval of the ratio of two means, by a bootstrap over seeds."""
    rng = np.random.default_rng(0)

    def drawn(values: Sequence[Sequence[float]]) -> float:
        return mean([rng.choice(seeds, len(seeds)) for seeds in values])

    ratios = [drawn(one) / drawn(other) for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
