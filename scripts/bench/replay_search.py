#!/usr/bin/env python
"""How good are our search strategies on brute-forced spaces that others are judged on?

    python scripts/bench/replay_search.py FOLDER_OR_FILE... --ways beam genetic lfbo --seeds 100

Each file is a space in which every configuration was measured: results in T4 (`*_T4.json`, `.json.gz`), or a cache
of Kernel Tuner. A search is replayed on it. A measurement costs the time that the file says (compilation, validation,
runs), and the search itself costs nothing. It takes milliseconds to a second a search, by strategy, on one core. The
machine need not be idle.

The score of a strategy is that of AutoTuningAssociation/autotuning_methodology at b0075f8 (Willemsen et al., A
methodology for comparing optimization algorithms for auto-tuning, 2024): its gain over the expected curve of random
search, as a share of what the optimum would gain, as a mean over time. 0 is random search and 1 the optimum. Time ends
where random search has come 95% of the way from the median to the optimum. The curve of a strategy is the isotonic
regression of the ranks that its searches have reached. Three differences: the regression is not bagged, there are 1,000
points in time instead of 10,000, and intervals are those of the mean, from 200 bootstraps over seeds.

Columns: the score over all spaces with its 95% interval, the score on each space, CPU seconds of a search.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import gzip
import json
import math
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression
from side_by_side import side_by_side

from autotune import strategies
from autotune.strategies import samplers
from autotune.strategies.restricted import RestrictedSpace, Table
from autotune.strategies.samplers import Sampler
from autotune.strategies.space import Configuration, Floats, Indices, Knob, Measured, Score, ValidConfiguration, View
from autotune.strategies.strategy import Strategy
from autotune.tvm_backend.search.knob_score import train_knob_score

WAYS = ("random", "genetic", "annealing", "droplet", "beam", "chameleon/greedy", "chameleon/adaptive")
EPSILON = 0.05
START = 0.01
END = 0.95
MARGIN = 1.1
POINTS = 1000
# An eighth of all configurations, asked for in batches, takes the trees as long as all of them at once.
ASKED_BEFORE_ALL = 8
BOOTSTRAPS = 200
MS_TIMES = ("compile_time", "verification_time", "benchmark_time", "framework_time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", help="files, or folders of them")
    parser.add_argument("--ways", nargs="+", default=WAYS, help="strategies, each as NAME or NAME/SAMPLER")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--round", type=int, default=8, help="measurements of a batch")
    parser.add_argument("--runs", type=Path, help="searches of Kernel Tuner, by `kernel_tuner_runs.py`")
    parser.add_argument("--processes", type=int, default=1, help="searches and bootstraps that run side by side")
    options = parser.parse_args()
    spaces = [read(file) for path in options.paths for file in files(path)]
    for space in spaces:
        space.space.walk(np.random.default_rng(0), space.cube[:1])  # prepares it for all processes
    searches = Searches(spaces, options.round)
    print(f"| | score | {' | '.join(space.name for space in spaces)} | s a search |")
    print("| --- " * (len(spaces) + 3) + "|")
    for way in options.ways:
        began = cpu_seconds()
        runs = searches.run(way, options.seeds, options.processes)
        seconds = (cpu_seconds() - began) / (len(spaces) * options.seeds)
        tell(way, spaces, runs, f"{seconds:.3f}", options.processes)
    for way, rows in (json.loads(options.runs.read_text()) if options.runs else {}).items():
        made = [[_until_the_end(space, measured) for measured in rows[space.name]] for space in spaces]
        tell(way, spaces, made, "", options.processes)


def cpu_seconds() -> float:
    """Return the CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tell(way: str, spaces: Sequence[Recorded], runs: Sequence[Sequence[Run]], seconds: str, processes: int) -> None:
    """Print the line of a way."""
    pools = [Pooled.of(space, made) for space, made in zip(spaces, runs, strict=True)]
    scores = [pooled.score() for pooled in pools]
    low, high = interval(pools, processes)
    columns = " | ".join(f"{value:.3f}" for value in scores)
    print(f"| {way} | {np.mean(scores):.3f} ({low:.3f} to {high:.3f}) | {columns} | {seconds} |", flush=True)


@dataclass(frozen=True)
class Recorded:
    """A space of which everything is known.

    Attributes:
        rows: The row of each configuration that satisfies the restrictions.
        us: Its time in microseconds, NaN where it failed, [rows].
        seconds: What its measurement took, [rows].
    """

    name: str
    space: RestrictedSpace
    rows: dict[Configuration, int]
    us: Floats
    seconds: Floats

    @cached_property
    def cube(self) -> Indices:
        """All configurations, allowed or not, [n, knobs]. `strides` tells the place of each."""
        return np.indices(self.space.sizes).reshape(len(self.space.sizes), -1).T

    @cached_property
    def strides(self) -> Indices:
        return np.append(np.cumprod(self.space.sizes[:0:-1])[::-1], 1)

    @cached_property
    def ascending(self) -> Floats:
        """The times of all configurations that have one, [valid]."""
        return np.sort(self.us[~np.isnan(self.us)])

    def end_s(self, share: float) -> float:
        """Return the seconds after which random search is expected to have come this share of the way."""
        optimum = self.ascending[0]
        goal = optimum + (np.median(self.ascending) - optimum) * (1 - share)
        worse = int(np.count_nonzero(self.ascending > goal))
        return math.ceil(worse / (len(self.ascending) + 1 - worse)) * float(np.median(self.seconds))

    @cached_property
    def clock(self) -> Floats:
        """The points in time at which searches are judged, in seconds."""
        return np.linspace(self.end_s(START), self.end_s(END), POINTS)

    @cached_property
    def random_curve(self) -> Floats:
        """The time that random search is expected to have found by each point of `clock`."""
        failed = np.isnan(self.us)
        mean_s = self.seconds[~failed].mean() + (failed.mean() * self.seconds[failed].mean() if failed.any() else 0.0)
        counts = np.maximum(np.round(self.clock / mean_s), 1).astype(int)
        size = len(self.ascending)
        ranks = np.minimum(np.round(counts * (size + 1) / (counts + 1)).astype(int), size - 1)
        distinct, first = np.unique(counts, return_index=True)
        curve = PchipInterpolator(distinct, self.ascending[::-1][ranks[first]])
        return np.asarray(curve(np.linspace(counts[0], counts[-1], POINTS)))


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*_T4.json*")) if path.is_dir() else [path]


def read(path: Path) -> Recorded:
    """Read results in T4, or a cache of Kernel Tuner."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        content = json.load(file)
    made = list(map(_of_t4, content["results"])) if "results" in content else _of_cache(content)
    names = list(made[0][0])
    knobs = [Knob(name, _ordered(values[name] for values, _, _ in made)) for name in names]
    index = [{value: place for place, value in enumerate(knob.values)} for knob in knobs]
    rows = {
        (0, *(index[place][values[name]] for place, name in enumerate(names))): row
        for row, (values, _, _) in enumerate(made)
    }
    table = np.array(list(rows), dtype=np.int64)
    space = RestrictedSpace((Knob("sketch", (0,)), *knobs), ((True,) * (len(knobs) + 1),), Table(table), table)
    name = path.name.partition(".")[0].removesuffix("_T4")
    return Recorded(name, space, rows, *(np.array([entry[column] for entry in made]) for column in (1, 2)))


Entry = tuple[dict[str, Any], float, float]


def _of_t4(result: dict[str, Any]) -> Entry:
    """Return the values, the time in microseconds, and the seconds of the measurement."""
    times = result["times"].values()
    spent = sum(sum(entry) if isinstance(entry, list) else entry for entry in times)
    wanted = result["objectives"][0]
    value = next(entry["value"] for entry in result["measurements"] if entry["name"] == wanted)
    valid = result["invalidity"] == "correct"
    values = {name: tuple(item) if isinstance(item, list) else item for name, item in result["configuration"].items()}
    return values, 1e3 * value if valid else math.nan, spent / 1e3


def _of_cache(content: dict[str, Any]) -> list[Entry]:
    names = content["tune_params_keys"]
    return [
        (
            {name: entry[name] for name in names},
            1e3 * entry["time"] if isinstance(entry["time"], int | float) else math.nan,
            sum(entry.get(part, 0.0) for part in MS_TIMES) / 1e3,
        )
        for entry in content["cache"].values()
    ]


def _ordered(values: Iterable[Any]) -> tuple[Any, ...]:
    distinct = list(dict.fromkeys(values))
    if all(isinstance(value, tuple) for value in distinct):
        return tuple(sorted(distinct, key=lambda tile: tile[::-1]))
    return tuple(sorted(distinct) if all(isinstance(value, int | float) for value in distinct) else distinct)


@dataclass(frozen=True)
class Run:
    """A search: the seconds after which each measurement ended, and the best time until then (NaN before one)."""

    seconds: Floats
    best: Floats


@dataclass(frozen=True)
class Searches:
    """Searches on several spaces, with rounds of `count` measurements."""

    spaces: Sequence[Recorded]
    count: int

    def run(self, way: str, seeds: int, processes: int) -> list[list[Run]]:
        """Replay searches with each seed on each space, [spaces, seeds]."""
        one = lambda space, seed: search(self.spaces[space], way, seed, self.count)  # noqa: E731
        return side_by_side(one, len(self.spaces), seeds, processes)


def search(recorded: Recorded, way: str, seed: int, count: int) -> Run:
    """Replay one search until random search would have ended."""
    strategy, picks = _way(way)
    learner = Learner(recorded)
    trials: list[Measured] = []
    rows: list[int] = []
    left_s = MARGIN * recorded.clock[-1]
    while left_s >= 0:
        seeds = np.random.SeedSequence([seed, len(trials)])
        score = learner.score(trials) if strategy.needs_score and strategy.modelled else None
        batch = strategy(view(recorded, trials, score), int(seeds.generate_state(1)[0])).propose(count, picks)
        if not batch:
            break
        measured = [recorded.rows[item] for item in batch]
        rows += measured
        left_s -= recorded.seconds[measured].sum()
        times = recorded.us[measured].tolist()
        trials += [Measured(item, None if math.isnan(us) else us) for item, us in zip(batch, times, strict=True)]
        if recorded.ascending[0] in times:
            break  # nothing is better, so the rest of the curve is known
    return _until_the_end(recorded, rows)


def _until_the_end(recorded: Recorded, rows: Sequence[int]) -> Run:
    """Return the search that measured some rows.

    It has further measurements, each as long as the median, until random search would have ended.
    """
    seconds = np.cumsum(recorded.seconds[rows])
    best = np.fmin.accumulate(recorded.us[rows])
    step = float(np.median(recorded.seconds))
    more = np.arange(seconds[-1] + step, MARGIN * recorded.clock[-1], step)
    return Run(np.concatenate([seconds, more]), np.concatenate([best, np.full(len(more), best[-1])]))


@functools.cache
def _way(way: str) -> tuple[type[Strategy], Sampler]:
    name, _, sampler = way.partition("/")
    strategy = strategies.get(name)
    return strategy, samplers.make(sampler or strategy.sampler, EPSILON, synthesis=True)


def view(recorded: Recorded, trials: Sequence[Measured], score: Score | None) -> View:
    """Return what a strategy sees: the score is the trees that a job of commands has."""

    def validate(configurations: Sequence[Configuration]) -> list[ValidConfiguration | None]:
        return [ValidConfiguration(item, None) if item in recorded.rows else None for item in configurations]

    return View(recorded.space, tuple(trials), score, validate, reranks=False)


class Learner:
    """The trees of one search. They are fitted anew when there are 15% more trials, as in a job."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._score: TabledScore | None = None
        self._fitted_to = 0

    def score(self, trials: Sequence[Measured]) -> TabledScore | None:
        """Return the score after some trials; None where there are too few."""
        if len(trials) >= 1.15 * self._fitted_to:
            trees = train_knob_score(self._recorded.space, trials)
            self._score = None if trees is None else TabledScore(self._recorded, trees)
            self._fitted_to = len(trials)
        return self._score


class TabledScore:
    """The trees' scores. Once they were asked for often, they are computed for all configurations and looked up."""

    def __init__(self, recorded: Recorded, trees: Score) -> None:
        self._recorded = recorded
        self._trees = trees
        self._asked = 0

    @cached_property
    def _scores(self) -> Floats:
        return self._trees(self._recorded.cube)

    def __call__(self, configurations: Indices) -> Floats:
        self._asked += len(configurations)
        if self._asked < len(self._recorded.cube) / ASKED_BEFORE_ALL:
            return self._trees(configurations)
        return self._scores[configurations @ self._recorded.strides]


@dataclass(frozen=True)
class Pooled:
    """The measurements of several searches on a space while they are judged, earliest first.

    Attributes:
        seconds: When each ended, [measurements].
        ranks: Place of the best time until then among all times of the space, [measurements].
        searches: Which search made it, [measurements].
        count: Number of searches.
    """

    recorded: Recorded
    seconds: Floats
    ranks: Indices
    searches: Indices
    count: int

    @classmethod
    def of(cls, recorded: Recorded, runs: Sequence[Run]) -> Pooled:
        seconds = np.concatenate([run.seconds for run in runs])
        best = np.concatenate([run.best for run in runs])
        searches = np.repeat(np.arange(len(runs)), [len(run.seconds) for run in runs])
        judged = (0.9 * recorded.clock[0] <= seconds) & (seconds <= MARGIN * recorded.clock[-1]) & ~np.isnan(best)
        order = np.flatnonzero(judged)[np.lexsort((-best[judged], seconds[judged]))]
        ranks = np.searchsorted(recorded.ascending, best[order])
        return cls(recorded, seconds[order], ranks, searches[order], len(runs))

    def score(self, draws: Indices | None = None) -> float:
        """Return the mean over time of the gain over random search, as a share of what the optimum would gain.

        Args:
            draws: How often each search counts, [searches]; once by default.
        """
        counted = np.ones(self.count) if draws is None else draws
        weights = counted[self.searches]
        drawn = np.flatnonzero(weights > 0)  # a regression needs positive weights
        fitted = isotonic_regression(self.ranks[drawn], weights=weights[drawn], increasing=False).x
        at_clock = np.round(np.interp(self.recorded.clock, self.seconds[drawn], fitted)).astype(int)
        curve = self.recorded.random_curve
        optimum = self.recorded.ascending[0]
        return float(np.mean((curve - self.recorded.ascending[at_clock]) / (curve - optimum)))


def interval(pools: Sequence[Pooled], processes: int) -> tuple[float, float]:
    """Return the 95% interval of the mean score over the spaces, by a bootstrap over seeds."""
    rng = np.random.default_rng(0)
    draws = [[_draws(rng, pooled.count) for pooled in pools] for _ in range(BOOTSTRAPS)]
    one = lambda space, bootstrap: pools[space].score(draws[bootstrap][space])  # noqa: E731
    means = np.mean(side_by_side(one, len(pools), BOOTSTRAPS, processes), axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _draws(rng: np.random.Generator, count: int) -> Indices:
    """Draw as many searches as there are, with repeats; return how often each was drawn."""
    return np.bincount(rng.integers(count, size=count), minlength=count)


if __name__ == "__main__":
    main()
