"""Which configurations get measured."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.strategies import samplers
from autotune.strategies.samplers import Adaptive, Greedy, cluster, mode
from autotune.strategies.space import ValidConfiguration, as_array, as_tuples


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def pool(landscape, rng):
    """Valid configurations in three clumps, one far from the others."""
    centres = np.array([[0, 4, 5, 2, 1, 1], [0, 15, 30, 9, 4, 6], [2, 10, 20, 2, 3, 0]])
    moved = np.concatenate([centre + rng.integers(0, 2, size=(30, 6)) * [0, 1, 1, 1, 1, 0] for centre in centres])
    return [item for item in dict.fromkeys(as_tuples(landscape.space.clip(moved))) if landscape.us(item)]


class TestGreedy:
    def test_takes_the_order_of_a_strategy_that_has_its_own(self, landscape, pool, rng):
        assert Greedy(0.5).pick(landscape.view([]), pool, 5, rng, modelled=False) == pool[:5]

    def test_lets_the_cost_model_order_the_survivors(self, landscape, pool, rng):
        view = landscape.view([])
        judged = {item: ValidConfiguration(item, float(at)) for at, item in enumerate(pool)}
        view = type(view)(view.space, (), None, lambda items: [judged[item] for item in items])
        picked = Greedy(0.0).pick(view, pool, 3, rng, modelled=True)
        assert picked == [pool[11], pool[10], pool[9]], "of the best 4 x 3"

    def test_draws_a_share_from_the_whole_space(self, landscape, pool, rng):
        picked = Greedy(0.5).pick(landscape.view([]), pool, 6, rng, modelled=True)
        assert len(picked) == 6
        assert picked[:3] == pool[:3]
        assert not set(picked[3:]) & set(pool)


class TestAdaptive:
    def test_measures_something_of_every_clump_and_no_more_than_it_must(self, landscape, pool, rng):
        picked = Adaptive().pick(landscape.view([]), pool, 64, rng, modelled=True)
        assert 8 <= len(picked) <= 9
        assert {(item[0], item[1] > 7) for item in picked} == {(0, False), (0, True), (2, True)}

    def test_more_clusters_as_long_as_each_is_worth_it(self, landscape, pool, rng, monkeypatch):
        losses = iter([100.0, 30.0, 10.0, 9.0, 1.0])
        asked = []

        def fall(points, k, rng):
            asked.append(k)
            return next(losses), [np.array([at]) for at in range(k)]

        monkeypatch.setattr(samplers, "cluster", fall)
        Adaptive().pick(landscape.view([]), pool, 64, rng, modelled=True)
        assert asked == [8, 9, 10, 11], "until 2.5 x loss >= previous loss"

    def test_a_centre_that_was_measured_is_replaced_by_the_synthesis(self, landscape):
        """Every member differs from the synthesis in one knob, so that it is none of them."""
        synthesis = (0, 6, 10, 5, 3, 4)
        moved = [(knob, by) for knob in range(1, 6) for by in (-1, 1, 2)]
        pool = [(*synthesis[:knob], synthesis[knob] + by, *synthesis[knob + 1 :]) for knob, by in moved]
        assert mode(as_array(pool, 6)) == synthesis
        first = Adaptive().pick(landscape.view([]), pool, 8, np.random.default_rng(0), modelled=True)
        assert synthesis not in first and landscape.us(first[0]) and landscape.us(synthesis)
        view = landscape.view(landscape.measure(first[:1]))
        assert Adaptive().pick(view, pool, 8, np.random.default_rng(0), modelled=True) == [synthesis, *first[1:]]

    def test_without_synthesis_what_was_measured_is_replaced_by_the_next_of_its_cluster(self, landscape, pool):
        first = Adaptive().pick(landscape.view([]), pool, 8, np.random.default_rng(0), modelled=True)
        trials = landscape.measure(first)
        second = Adaptive(synthesis=False).pick(
            landscape.view(trials), pool, 8, np.random.default_rng(0), modelled=True
        )
        assert second and not set(first) & set(second)
        assert set(second) <= set(map(landscape.program, pool))

    def test_a_cluster_of_which_everything_is_known_is_left_out(self, landscape, pool, rng):
        measured = landscape.measure([item for item in pool if item[0] == 2])
        picked = Adaptive(synthesis=False).pick(landscape.view(measured), pool, 8, rng, modelled=True)
        assert picked and all(item[0] == 0 for item in picked)


def test_the_mode_stays_within_the_most_frequent_sketch(landscape):
    rows = as_array([(0, 1, 1, 1, 1, 1), (2, 5, 7, 2, 3, 4), (2, 5, 6, 2, 1, 4), (2, 9, 7, 2, 1, 4)], 6)
    assert mode(rows) == (2, 5, 7, 2, 1, 4)


def test_k_means_is_seeded_and_sorts_members_by_distance(rng):
    points = rng.random((60, 3))
    loss, groups = cluster(points, 6, np.random.default_rng(3))
    again, same = cluster(points, 6, np.random.default_rng(3))
    assert loss == again and all(np.array_equal(a, b) for a, b in zip(groups, same, strict=True))
    assert sorted(np.concatenate(groups).tolist()) == list(range(60))
    for group in groups:
        distances = np.linalg.norm(points[group] - points[group].mean(axis=0), axis=1)
        assert distances[0] <= distances[-1]


def test_a_sampler_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no sampler 'best'; there are greedy, adaptive"):
        samplers.make("best", 0.1, synthesis=True)
