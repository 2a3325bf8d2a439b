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
    """The mean over seeds of the best time."""
    runs = [tune(name, sampler, rounds, seed=seed) for seed in SEEDS]
    best = [min(trial.median_us for trial in run if trial.median_us) for run in runs]
    return sum(best) / len(best)


SLOW = pytest.mark.slow  # its agent learns in every round


@pytest.fixture(scope="module")
def random_best() -> dict[int, float]:
    """What random search has found after a number of rounds, once it was asked for."""
    return {}


def beats_random(tune, random_best, name, sampler, rounds):
    if rounds not in random_best:
        random_best[rounds] = best_of(tune, "random", Greedy(0.1), rounds)
    return best_of(tune, name, sampler, rounds) < random_best[rounds]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW if name == "chameleon" else ()) for name in STRATEGIES if name != "random"],
)
def test_a_strategy_beats_random_search_on_equal_trials(tune, random_best, name):
    assert beats_random(tune, random_best, name, Greedy(0.1), 14)  # droplet descends after 64 trials


@pytest.mark.parametrize("name", ["annealing", pytest.param("chameleon", marks=SLOW)])
def test_a_strategy_with_the_adaptive_sampler_beats_random_search_on_equal_trials(tune, random_best, name):
    assert beats_random(tune, random_best, name, Adaptive(), 10)
