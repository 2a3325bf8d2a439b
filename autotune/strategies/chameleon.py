"""Chameleon's Adaptive Exploration: an agent learns in which direction to move the knobs.

(Ahn et al., ICLR 2020, section 3.2.) Its Adaptive Sampling and Sample Synthesis are the sampler `adaptive`, which it
uses unless another is asked for. The paper's ablation is: SA `annealing` with `greedy`, AE `chameleon` with `greedy`,
SA+AS `annealing` with `adaptive`, AE+AS `chameleon` with `adaptive`.
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.annealing import KEPT, PATIENCE, TopK, starts
from autotune.strategies.base import Strategy
from autotune.strategies.ppo import Agent, AgentSettings, EpisodeStep, training_batch
from autotune.strategies.space import Indices, Score

EPISODES = 128
STEPS = 500
# Steps of all episodes between two updates of the agent. With a single update at the end, the agent would never act
# on what it has learnt.
STEPS_PER_UPDATE = 10


class ChameleonSearch(Strategy):
    """Runs 128 episodes side by side, at most 500 steps each. A step may move every knob by one value.

    The state is the configuration, the reward the cost model's estimate of the next one. The agent is updated every
    10 steps, from all episodes at once. Episodes start where the chains of `annealing` do, and stop by the same rule:
    when none of the best configurations has changed for a while.

    In the paper the agent is kept between batches. Here it starts anew for each batch, with more trials each time, so
    that only the log has to survive a kill.
    """

    name = "chameleon"
    sampler = "adaptive"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        space = self.view.space
        kept = TopK(max(KEPT, 8 * count))
        watched = TopK(max(64, count))
        agent = Agent(len(space.knobs), AgentSettings(), self.rng)
        points = starts(self, EPISODES)
        for best in (kept, watched):
            best.add(points, score(points))
        unchanged = 0
        while self.steps < STEPS and unchanged < PATIENCE:
            points, changed = self._update(agent, points, score, kept, watched)
            unchanged = 0 if changed else unchanged + STEPS_PER_UPDATE
        return kept.best_first(len(space.knobs))

    def _update(self, agent: Agent, points: Indices, score: Score, kept: TopK, watched: TopK) -> tuple[Indices, bool]:
        """Make some steps in all episodes and update the agent.

        Returns:
            Where the episodes are now, [episodes, knobs], and whether `watched` has changed.
        """
        space = self.view.space
        changed = False
        steps: list[EpisodeStep] = []
        for _ in range(STEPS_PER_UPDATE):
            states = space.coordinates(points)
            mask = space.mask[points[:, 0]].astype(np.float64)
            actions, log_probabilities, values = agent.act(states, mask, self.rng)
            points = space.clip(points + actions - 1)
            rewards = score(points)
            kept.add(points, rewards)
            changed |= watched.add(points, rewards)
            steps.append(EpisodeStep(states, actions, mask, log_probabilities, values, rewards))
            self.steps += 1
        last_values = agent.values(space.coordinates(points))
        agent.learn(training_batch(steps, last_values, agent.settings), self.rng)
        return points, changed
