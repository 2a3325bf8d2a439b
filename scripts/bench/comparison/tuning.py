"""One run of a strategy with a sampler on a layer: rounds of searching and measuring, as a job would have them."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .layer import Layer


@dataclass(frozen=True)
class RunSettings:
    """Everything that determines a run."""

    layer: str
    strategy: str
    sampler: str
    seed: int
    prior: bool
    trials: int
    round: int

    @property
    def name(self) -> str:
        return f"{self.strategy}/{self.sampler}" + (" + prior" if self.prior else "")


@dataclass
class Tuning:
    """A run. It starts with no trials of its layer, and sees only its own."""

    layer: Layer
    way: RunSettings
    trials: list[Any] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    _rows: dict[str, Any] = field(default_factory=dict)

    def spend(self) -> None:
        """Run rounds until the budget is spent or the space is exhausted."""
        while len(self.trials) < self.way.trials:
            began = time.monotonic()
            found = self._propose(min(self.way.round, self.way.trials - len(self.trials)))
            seconds = time.monotonic() - began
            if not found.candidates:
                return
            trials, known = self.layer.measure(found.candidates)
            self.trials += trials
            told = {"steps": found.steps, "replayed": found.replayed, "invalid": found.invalid}
            self.rounds.append(
                {"seconds": seconds, "known": known, "size": len(trials), **told, "repeated": found.repeated}
            )

    def _propose(self, count: int) -> Any:
        from autotune import strategies
        from autotune.strategies import samplers
        from autotune.tvm_backend.search.evolutionary import EvolutionarySearch, EvolutionParameters
        from autotune.tvm_backend.search.propose import Request, propose

        way, knobs = self.way, self.layer.knobs
        model, seed = self._model(), 1000 * way.seed + len(self.rounds) + 1
        if way.strategy == "evolutionary":
            parameters = EvolutionParameters(min(96, max(24, 6 * count)), 3, 24, 0.85)
            given = {"knobs": knobs, "trials": self.trials, "model": model, "parameters": parameters}
            strategy: Any = functools.partial(EvolutionarySearch, **given)
        else:
            strategy = strategies.get(way.strategy)
        sampler = samplers.make(way.sampler, 0.05, synthesis=True)
        return propose(knobs, strategy, sampler, Request(self.trials, (), count, model, seed))

    def _model(self) -> Any:
        """Return the cost model on the trials of this run, as the train stage would train it."""
        from autotune.tvm_backend.search.cost_model import CostModel, prior, relative_throughput

        start = prior("llvm") if self.way.prior else None
        if not any(trial.median_us for trial in self.trials):
            return start
        features(self.layer, self.trials, self._rows)
        labels = relative_throughput(trial.median_us for trial in self.trials)
        return CostModel.train([self._rows[trial.hash] for trial in self.trials], labels, start)

    def summary(self) -> dict[str, Any]:
        """Return what the tables are made of, as JSON."""
        best = itertools.accumulate((trial.median_us or float("inf") for trial in self.trials), min)
        return {
            **asdict(self.way),
            "best_over_trials": list(best),
            "failed": sum(trial.median_us is None for trial in self.trials),
            "rounds": self.rounds,
        }


def features(layer: Layer, trials: Sequence[Any], rows: dict[str, Any]) -> None:
    """Add the features of the trials that have none yet to `rows`, by hash."""
    from autotune.tvm_backend.search.features import FeatureExtractor

    missing = [trial for trial in trials if trial.hash not in rows]
    if missing:
        found = FeatureExtractor(layer.program, layer.target).of_trials(missing)
        rows.update({trial.hash: row for trial, row in zip(missing, found, strict=True)})
