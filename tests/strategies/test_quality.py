"""Each strategy is better than random search where there is something to find. Quality with set seeds, never time."""

from __future__ import annotations

import pytest

from autotune.strategies import STRATEGIES, annealing, chameleon
from autotune.strategies.samplers import Adaptive, Greedy

SEEDS = (1, 100, 200)


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    """A quarter of the chains and steps: the space is small, too."""
    for module, chains in ((annealing, "CHAINS"), (chameleon, "EPISODES")):
        monkeypatch.setattr(module, chains, 32)
        monkeypatch.setattr(module, "STEPS", 120)


def best_of(tune, name, sampler, rounds):
    """The mean over seeds of the best time, and how many trials that took."""
    runs = [tune(name, sampler, rounds, seed=seed) for seed in SEEDS]
    best = [min(trial.median_us for trial in run if trial.median_us) for run in runs]
    return sum(best) / len(best), sum(map(len, runs)) / len(runs)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "random"])
def test_a_strategy_beats_random_search_on_equal_trials(tune, name):
    rounds = 14  # droplet descends after 64 trials
    assert best_of(tune, name, Greedy(0.1), rounds)[0] < best_of(tune, "random", Greedy(0.1), rounds)[0]


@pytest.mark.parametrize("name", ["annealing", "chameleon"])
def test_a_strategy_with_the_adaptive_sampler_beats_random_search_on_equal_trials(tune, name):
    assert best_of(tune, name, Adaptive(), 10)[0] < best_of(tune, "random", Greedy(0.1), 10)[0]
