"""The agent: gradients against finite differences, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.strategies.chameleon import Agent, AgentSettings, EpisodeStep, TrainingBatch, advantages, training_batch


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def make_batch(agent, rng, rows=24):
    """Steps of an older policy, so that some ratios are clipped, and knobs that are not used."""
    states = rng.random((rows, agent.knobs))
    mask = (rng.random(states.shape) < 0.7).astype(float)
    actions, before, _ = agent.act(states, mask, rng)
    before = before + rng.normal(0.0, 0.4, rows)
    return TrainingBatch(states, actions, mask, before, rng.normal(size=rows), rng.normal(size=rows))


@pytest.mark.parametrize("value_weight, entropy_weight", [(1.0, 0.1), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_the_gradients_are_those_of_the_loss(rng, value_weight, entropy_weight):
    settings = AgentSettings(width=6, value_weight=value_weight, entropy_weight=entropy_weight)
    agent = Agent(4, settings, rng)
    for value in agent.parameters.values():
        value += rng.normal(0.0, 0.3, value.shape)
    batch = make_batch(agent, rng)
    _, gradients = agent.loss(batch)
    for name, parameter in agent.parameters.items():
        for at in rng.choice(parameter.size, size=min(6, parameter.size), replace=False):
            numeric = _slope(agent, batch, parameter, np.unravel_index(at, parameter.shape))
            assert gradients[name].flat[at] == pytest.approx(numeric, rel=1e-4, abs=1e-8), name


def _slope(agent, batch, parameter, at, width=1e-6):
    kept = parameter[at]
    parameter[at] = kept + width
    above = agent.loss(batch)[0]
    parameter[at] = kept - width
    below = agent.loss(batch)[0]
    parameter[at] = kept
    return (above - below) / (2 * width)


def test_a_batch_has_ratios_that_are_clipped(rng):
    """Or `test_the_gradients_are_those_of_the_loss` would say nothing about clipping."""
    agent = Agent(4, AgentSettings(width=6), rng)
    batch = make_batch(agent, rng)
    _, again, _ = agent.act(batch.states, batch.mask, rng)
    assert again.shape == batch.log_probabilities.shape
    everywhere = agent.loss(batch)[0]
    unclipped = Agent(4, AgentSettings(width=6, clip=1e9), np.random.default_rng(0)).loss(batch)[0]
    assert everywhere != unclipped


def test_advantages_discount_what_is_surprising():
    settings = AgentSettings(discount=0.5, gae=0.5)
    rewards = np.array([[1.0], [2.0]])
    values = np.array([[0.5], [1.0], [4.0]])
    last = 2.0 + 0.5 * 4.0 - 1.0
    first = 1.0 + 0.5 * 1.0 - 0.5 + 0.25 * last
    assert advantages(rewards, values, settings).tolist() == [[first], [last]]


def test_actions_are_drawn_as_probable_as_they_say(rng):
    agent = Agent(2, AgentSettings(width=4), rng)
    agent.parameters["logits_bias"][:] = np.log([0.7, 0.2, 0.1, 0.1, 0.1, 0.8])
    agent.parameters["logits"][:] = 0.0
    states = np.zeros((20000, 2))
    actions, logs, _ = agent.act(states, np.ones_like(states), rng)
    shares = [np.bincount(column, minlength=3) / len(states) for column in actions.T]
    assert np.allclose(shares, [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], atol=0.02)
    down_up = (actions[:, 0] == 0) & (actions[:, 1] == 2)
    assert np.allclose(logs[down_up], np.log(0.7 * 0.8))


def test_a_knob_that_is_not_used_has_no_say(rng):
    agent = Agent(2, AgentSettings(width=4), rng)
    states = rng.random((8, 2))
    mask = np.tile([1.0, 0.0], (8, 1))
    actions, before, _ = agent.act(states, mask, rng)
    other = actions.copy()
    other[:, 1] = (other[:, 1] + 1) % 3
    ones = np.ones(8)
    fixed = np.zeros(8)
    assert agent.loss(TrainingBatch(states, actions, mask, before, ones, fixed))[0] == pytest.approx(
        agent.loss(TrainingBatch(states, other, mask, before, ones, fixed))[0]
    )


def test_an_agent_learns_to_walk_uphill(rng):
    """One knob on a line, the reward is its position: the policy comes to prefer +1."""
    agent = Agent(1, AgentSettings(), rng)
    points = rng.integers(0, 21, size=(64, 1))
    for _ in range(60):
        steps = []
        for _ in range(10):
            states = points / 20
            mask = np.ones((64, 1))
            actions, before, values = agent.act(states, mask, rng)
            points = np.clip(points + actions - 1, 0, 20)
            steps.append(EpisodeStep(states, actions, mask, before, values, points[:, 0] / 20))
        agent.learn(training_batch(steps, agent.values(points / 20), agent.settings), rng)
        points = rng.integers(0, 21, size=(64, 1))
    actions, _, _ = agent.act(np.full((1000, 1), 0.3), np.ones((1000, 1)), rng)
    assert (actions == 2).mean() > 0.6
    assert (actions == 0).mean() < 0.2
