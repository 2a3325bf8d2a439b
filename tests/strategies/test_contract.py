"""What every strategy keeps with every sampler, the user's own included. A new strategy is tested by its name here."""

from __future__ import annotations

import itertools

import pytest

from autotune import strategies
from autotune.strategies import samplers
from autotune.strategies.space import Knob, Space
from autotune.strategies.view import Measured

NAMES = [*strategies.STRATEGIES, "hill"]
CASES = list(itertools.product(NAMES, strategies.SAMPLERS))
pytestmark = [pytest.mark.usefixtures("brief"), pytest.mark.parametrize(("name", "kind"), CASES)]


@pytest.fixture
def propose(name, kind):
    """The batch that a strategy proposes for a view, as the search stage asks for it."""

    def run(view, count=8, seed=1):
        return strategies.get(name)(view, seed).propose(count, samplers.make(kind, 0.1, synthesis=True))

    return run


@pytest.fixture
def trials(landscape):
    """Trials that a random search made, failures among them."""
    valid = [item for item in map(tuple, landscape.space.sample(_rng(3), 60).tolist()) if landscape.us(item)]
    made = landscape.measure(dict.fromkeys(map(landscape.program, valid)))
    return [*made, Measured((0, 1, 2, 0, 0, 0), None), Measured((1, 5, 9, 3, 0, 0), None)]


def _rng(seed):
    import numpy as np

    return np.random.default_rng(seed)


def test_the_same_view_and_seed_give_the_same_batch(propose, landscape, trials):
    first = propose(landscape.view(trials), seed=5)
    assert first == propose(landscape.view(trials), seed=5)
    assert first and first != propose(landscape.view(trials), seed=6)


def test_every_configuration_is_new_valid_different_and_in_the_space(propose, landscape, trials):
    taken = {landscape.program(trial.configuration) for trial in trials}
    for seed in range(3):
        batch = propose(landscape.view(trials), count=12, seed=seed)
        assert 0 < len(batch) <= 12
        assert len(set(map(landscape.program, batch))) == len(batch)
        assert not taken & set(batch)
        assert all(item in landscape.space and landscape.us(item) for item in batch)


def test_what_is_on_its_way_is_not_proposed_again(propose, landscape, trials):
    pending = propose(landscape.view(trials))
    batch = propose(landscape.view(trials, pending))
    assert batch
    assert not set(map(landscape.program, pending)) & set(map(landscape.program, batch))


def test_the_next_batch_follows_from_the_trials_alone(propose, landscape, trials):
    """A search that went through every batch, and one that is rebuilt from the log after a kill, go on alike."""
    went_on = list(trials)
    for seed in (1, 2, 3):
        went_on += landscape.measure(propose(landscape.view(went_on), seed=seed))
    rebuilt = [Measured(tuple(list(trial.configuration)), trial.median_us) for trial in went_on]
    assert propose(landscape.view(went_on), seed=4) == propose(landscape.view(rebuilt), seed=4)


def test_it_starts_with_no_trials_at_all(propose, landscape):
    assert len(propose(landscape.view([]))) == 8


def test_it_goes_on_when_every_trial_failed(propose, landscape):
    failed = [Measured(item, None) for item in propose(landscape.view([]), count=20)]
    batch = propose(landscape.view(failed))
    assert batch and not {trial.configuration for trial in failed} & set(batch)


def test_it_works_without_a_score(propose, landscape, trials):
    assert propose(landscape.view(trials, known=False))


def test_a_small_space_is_proposed_to_the_end_and_then_ends(propose, small):
    trials: list[Measured] = []
    for seed in range(40):
        batch = propose(small.view(trials), seed=seed)
        if not batch:
            break
        trials += small.measure(batch)
    assert {trial.configuration for trial in trials} == small.valid()
    assert len(trials) == len(small.valid())


def test_a_space_smaller_than_a_batch_gives_what_it_has(propose, small):
    assert set(propose(small.view([]), count=1000)) <= small.valid()


def test_a_space_of_one_configuration_is_measured_once(propose, landscape):
    one = type(landscape)(
        Space((Knob("sketch", (0,)), Knob("a", (1,)), Knob("b", (1,))), ((True, True, True),)), (0, 0, 0)
    )
    assert propose(one.view([])) == [(0, 0, 0)]
    assert propose(one.view(one.measure([(0, 0, 0)]))) == []


def test_nothing_is_proposed_where_nothing_is_valid(propose, landscape):
    landscape.us = lambda configuration: None
    assert propose(landscape.view([])) == []


def test_it_replays_no_more_than_a_few_for_each_that_it_proposes(propose, landscape, trials):
    landscape.validated.clear()
    batch = propose(landscape.view(trials))
    assert len(set(landscape.validated)) <= 12 * len(batch)


def test_it_counts_its_steps(name, kind, landscape, trials):
    search = strategies.get(name)(landscape.view(trials), 1)
    search.propose(8, samplers.make(kind, 0.1, synthesis=True))
    assert search.steps > 0
