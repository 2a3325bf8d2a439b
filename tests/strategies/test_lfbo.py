"""The forest learns which trials are good, and the search stays close to them."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.strategies import lfbo
from autotune.strategies.lfbo import Forest, LikelihoodFreeSearch
from autotune.strategies.samplers import Greedy
from autotune.testing import Landscape


@pytest.fixture
def search(landscape: Landscape) -> LikelihoodFreeSearch:
    drawn = landscape.space.sample(np.random.default_rng(3), 80).tolist()
    programs = dict.fromkeys(landscape.program(tuple(item)) for item in drawn)
    return LikelihoodFreeSearch(landscape.view(landscape.measure(list(programs))), 1)


def test_a_forest_ranks_what_it_has_not_seen(landscape: Landscape) -> None:
    rng = np.random.default_rng(1)
    seen = landscape.space.sample(rng, 200)
    unseen = landscape.space.sample(rng, 400)
    predicted = Forest(seen, landscape.score(seen), rng)(unseen)
    assert np.corrcoef(predicted, landscape.score(unseen))[0, 1] > 0.6


def test_a_forest_of_equal_trials_predicts_their_label() -> None:
    rows = np.zeros((5, 3), dtype=np.int64)
    forest = Forest(rows, np.full(5, 0.25), np.random.default_rng(1))
    assert forest(rows[:2]) == pytest.approx([0.25, 0.25])


def test_neighbours_differ_in_one_knob_by_one_value(search: LikelihoodFreeSearch) -> None:
    centre = search.view.ranked()[0]
    same_sketch = [row for row in search.view.space.nearest(centre) if row[0] == centre[0]]
    assert len(same_sketch) > len(centre)
    assert all(np.abs(row - centre).sum() == 1 for row in same_sketch)


def test_a_share_of_a_batch_is_next_to_the_best_trial(search: LikelihoodFreeSearch) -> None:
    near = {tuple(row) for row in search.view.space.nearest(search.view.ranked()[0]).tolist()}
    batch = search.propose(8, Greedy(0.0))
    share = round(lfbo.POLISH * 8)
    assert set(batch[:share]) <= near and len(batch) == 8


def test_all_nearest_neighbours_of_the_best_trial_are_offered(search: LikelihoodFreeSearch) -> None:
    near = {tuple(row) for row in search.view.space.nearest(search.view.ranked()[0]).tolist()}
    offered = {tuple(row) for row in search.explore(8).tolist()}
    assert near - search.view.taken <= offered
