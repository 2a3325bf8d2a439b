"""What single strategies owe beyond the contract."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.strategies import droplet
from autotune.strategies.annealing import SimulatedAnnealing
from autotune.strategies.beam import BeamSearch
from autotune.strategies.chameleon import ChameleonSearch
from autotune.strategies.droplet import DropletSearch
from autotune.strategies.genetic import GeneticSearch
from autotune.strategies.samplers import Greedy
from autotune.strategies.space import Measured
from autotune.strategies.strategy import Strategy

pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture
def trials(landscape):
    sample = landscape.space.sample(np.random.default_rng(3), 80).tolist()
    return landscape.measure(dict.fromkeys(landscape.program(tuple(item)) for item in sample))


@pytest.mark.parametrize("strategy", [SimulatedAnnealing, ChameleonSearch])
def test_a_guided_search_hands_over_the_best_first_and_better_ones_than_it_began_with(landscape, trials, strategy):
    configurations = strategy(landscape.view(trials), 1).explore(8)
    scores = landscape.score(configurations)
    assert (np.diff(scores) <= 0).all()
    assert scores[0] > max(landscape.score(np.array([trial.configuration for trial in trials])))


def test_a_beam_scores_once_in_each_of_its_steps_and_once_before_them(landscape, trials):
    scored = []
    view = replace(landscape.view(trials), score=lambda rows: scored.append(rows) or landscape.score(rows))
    search = BeamSearch(view, 1)
    search.explore(8)
    assert search.steps == len(scored) - 1 > 1


def test_children_take_after_the_fastest_parents(landscape):
    fast = (0, 19, 34, 11, 5, 7)
    slow = [(0, at, 0, 0, 0, 0) for at in range(4)]
    trials = [Measured(fast, 1.0), *(Measured(item, 100.0) for item in slow)]
    children = GeneticSearch(landscape.view(trials), 1)._bred(landscape.view(trials).ranked(), 400)
    assert (children[:, 2:] == fast[2:]).mean() > 0.8


def test_a_droplet_falls_along_one_knob_at_a_time_from_the_best_nearest_first(landscape, trials):
    view = landscape.view(trials)
    search = DropletSearch(view, 1)
    best = view.ranked()[0]
    ring = search.explore(8)[1:9]
    changed = (ring != best)[:, 1:]
    same_sketch = ring[:, 0] == best[0]
    assert same_sketch.any() and (changed.sum(axis=1)[same_sketch] <= 1).all()
    assert (np.abs(ring - best).max(axis=1)[same_sketch] <= 1).all()
    assert not search.modelled


def test_before_it_has_seen_enough_a_droplet_anneals(landscape, trials):
    few = landscape.view(trials[: droplet.FIRST - 1])
    assert np.array_equal(DropletSearch(few, 1).explore(8), SimulatedAnnealing(few, 1).explore(8))


@pytest.mark.parametrize(("needs_score", "explores"), [(False, True), (True, False)])
def test_a_strategy_whose_model_is_its_own_explores_without_a_score(landscape, needs_score, explores):
    ranked = [(0, at, 9, 4, 0, 6) for at in range(6)]

    class OwnModel(Strategy):
        def explore(self, count):
            return np.array(ranked)

    OwnModel.needs_score = needs_score
    view = landscape.view([])
    assert view.score is None
    picked = OwnModel(view, 1).propose(4, Greedy(0.0))
    assert (picked == [item for item in ranked if landscape.us(item)][:4]) is explores
