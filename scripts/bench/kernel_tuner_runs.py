#!/usr/bin/env python
"""Replay strategies of Kernel Tuner on brute-forced spaces, for `replay_search.py --runs` to judge beside ours.

    python -m venv build/kernel_tuner && build/kernel_tuner/bin/pip install kernel_tuner==1.5.0
    build/kernel_tuner/bin/python scripts/bench/kernel_tuner_runs.py SPACE_T4.json.gz... --output runs.json
    python scripts/bench/replay_search.py SPACE_T4.json.gz... --ways lfbo --runs runs.json

Each strategy has the hyper-parameters that Kernel Tuner gives it. A measurement costs what the file says, one that is
made again costs nothing, and the strategy itself neither. A search ends where one of ours does.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options
from kernel_tuner.searchspace import Searchspace

STRATEGIES = ("genetic_algorithm", "gen_hybrid_vndx")
END = 0.95
MARGIN = 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", type=Path, nargs="+")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    runs: dict[str, dict[str, list[list[int]]]] = {}
    for path in options.spaces:
        recorded = Recorded(path)
        for name in options.strategies:
            made = [recorded.search(name, seed) for seed in range(options.seeds)]
            runs.setdefault(f"Kernel Tuner's {name}", {})[recorded.name] = made
            print(recorded.name, name, flush=True)
            options.output.write_text(json.dumps(runs))


class Recorded:
    """A space of which everything is known, as Kernel Tuner sees it."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path, "rt") as file:
            results = json.load(file)["results"]
        self.name = path.name.partition(".")[0].removesuffix("_T4")
        names = list(results[0]["configuration"])
        self.rows = {tuple(entry["configuration"][name] for name in names): row for row, entry in enumerate(results)}
        self.answers = [_answer(entry) for entry in results]
        self.seconds = [_seconds(entry) for entry in results]
        cache = {str(row): entry["configuration"] for row, entry in enumerate(results)}
        values = {name: sorted({entry["configuration"][name] for entry in results}) for name in names}
        self.space = Searchspace(None, None, None, from_cache={"tune_params": values, "cache": cache})
        assert self.space.size == len(self.rows)

    @property
    def limit_s(self) -> float:
        """The seconds of a search, as in `replay_search.py`: random search has come nearly to the optimum."""
        times = np.sort([answer for answer in self.answers if isinstance(answer, float)])
        goal = times[0] + (np.median(times) - times[0]) * (1 - END)
        worse = int(np.count_nonzero(times > goal))
        return float(MARGIN * np.ceil(worse / (len(times) + 1 - worse)) * np.median(self.seconds))

    def search(self, name: str, seed: int) -> list[int]:
        """Return the rows that a search measures, in order."""
        random.seed(seed)
        np.random.seed(seed)
        runner = Runner(self, self.limit_s)
        options = Options(
            {
                "objective": ["time"],
                "objective_higher_is_better": [False],
                "strategy_options": Options({}),
                "budget": runner,
                "verbose": False,
                "tune_params": self.space.tune_params,
                "restrictions": self.space.restrictions,
                "cache": {},
            }
        )
        importlib.import_module(f"kernel_tuner.strategies.{name}").tune(self.space, runner, options)
        return list(runner.measured)


def _answer(entry: Mapping[str, Any]) -> Any:
    value = next(item["value"] for item in entry["measurements"] if item["name"] == entry["objectives"][0])
    return value if entry["invalidity"] == "correct" else util.RuntimeFailedConfig()


def _seconds(entry: Mapping[str, Any]) -> float:
    spent = (sum(item) if isinstance(item, list) else item for item in entry["times"].values())
    return sum(spent) / 1e3


class Runner:
    """Answers from the record, and is the budget: seconds of measurements that were not made before."""

    def __init__(self, recorded: Recorded, seconds: float) -> None:
        self._recorded = recorded
        self._seconds = seconds
        self._left = seconds
        self.measured: dict[int, None] = {}

    def run(self, configurations: Iterable[Sequence[Any]], options: Any) -> list[dict[str, Any] | None]:
        return [self._one(tuple(item)) for item in configurations]

    def _one(self, configuration: tuple[Any, ...]) -> dict[str, Any] | None:
        if self.is_done():
            return None
        row = self._recorded.rows[configuration]
        if row not in self.measured:
            self.measured[row] = None
            self._left -= self._recorded.seconds[row]
        answer = self._recorded.answers[row]
        failed = {"__error__": answer} if isinstance(answer, util.ErrorConfig) else {}
        return {**dict(zip(self._recorded.space.tune_params, configuration, strict=True)), "time": answer, **failed}

    def add_strategy_time(self, seconds: float) -> None:
        """A strategy costs nothing here."""

    def is_done(self) -> bool:
        return self._left < 0 or len(self.measured) == len(self._recorded.rows)

    def raise_exception_if_done(self) -> None:
        if self.is_done():
            raise util.StopCriterionReached("the budget is spent")

    def get_fraction_consumed(self) -> float:
        return min(1.0, 1.0 - self._left / self._seconds)

    def get_evaluations_remaining(self) -> int:
        return len(self._recorded.rows) - len(self.measured)


if __name__ == "__main__":
    main()
