"""Knobs and configurations."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.strategies.annealing import TopK
from autotune.strategies.space import Knob, Space, as_array, as_tuples


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_a_small_space_lists_every_configuration_once(small):
    every = list(small.space)
    assert len(every) == len(set(every)) == small.space.size
    assert all(item in small.space for item in every)


def test_what_is_not_a_configuration_is_not_in_it(small):
    assert (0, 1, 1, 0, 1) in small.space
    for wrong in [(3, 0, 0, 0, 0), (0, 2, 0, 0, 0), (0, -1, 0, 0, 0), (0, 0, 0, 0)]:
        assert wrong not in small.space


def test_an_unused_knob_is_zero_in_every_sample(landscape, rng):
    sample = landscape.space.sample(rng, 500)
    assert all(item in landscape.space for item in as_tuples(sample))
    assert set(sample[:, 0]) == {0, 1, 2}
    unused = ~landscape.space.mask[sample[:, 0]]
    assert not sample[unused].any()


def test_a_walk_changes_one_knob_that_is_used(landscape, rng):
    start = landscape.space.sample(rng, 400)
    moved = landscape.space.walk(rng, start)
    assert all(item in landscape.space for item in as_tuples(moved))
    same_sketch = start[:, 0] == moved[:, 0]
    assert set((start != moved)[same_sketch].sum(axis=1)) == {1}
    assert (~same_sketch).any()


def test_a_walk_in_a_space_of_one_stays_where_it_is(rng):
    space = Space((Knob("sketch", (0,)),), ((True,),))
    assert space.walk(rng, as_array([(0,)], 1)).tolist() == [[0]]


def test_the_elite_keeps_the_best_distinct_ones():
    elite = TopK(2)
    rows = as_array([(1,), (2,), (3,), (2,)], 1)
    assert elite.add(rows, np.array([1.0, 3.0, 2.0, 3.0]))
    assert elite.best_first(1).tolist() == [[2], [3]]
    assert not elite.add(as_array([(2,), (4,)], 1), np.array([3.0, 1.5]))
    assert elite.add(as_array([(5,)], 1), np.array([2.5]))
    assert elite.best_first(1).tolist() == [[2], [5]]
