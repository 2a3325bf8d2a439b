"""Chameleon's Adaptive Exploration: an agent learns which way to turn the knobs (Ahn et al., ICLR 2020, section 3.2).

Its Adaptive Sampling and Sample Synthesis are the sampler `adaptive`, with which it goes unless another is asked for.
The paper's ablation is: SA `annealing` with `greedy`, AE `chameleon` with `greedy`, SA+AS `annealing` with `adaptive`,
AE+AS `chameleon` with `adaptive`.
"""

from __future__ import annotations

import numpy as np

from autotune.strategies.annealing import KEPT, PATIENCE, starts
from autotune.strategies.base import Score, Strategy
from autotune.strategies.elite import Elite
from autotune.strategies.ppo import Agent, Settings, Step, lesson
from autotune.strategies.space import Indices

EPISODES = 128
STEPS = 500
# Steps of all episodes between two lessons. With one at the end only, the agent would never act on what it learnt.
LESSON = 10


class Search(Strategy):
    """128 episodes side by side, of at most 500 steps each; all knobs may move by one value in a step.

    The state is the configuration, the reward the cost model's estimate of the next one. The agent learns every few
    steps, from all episodes at once. Episodes begin where the chains of `annealing` do and end as they
    do: when none of the best has changed for a while.

    In the paper the agent outlives the batch. Here it begins anew each time, with trials that say more each time:
    nothing but the log has to survive a kill.
    """

    name = "chameleon"
    sampler = "adaptive"

    def explore(self, count: int) -> Indices:
        score = self.view.score
        assert score is not None, "a modelled strategy explores with a score"
        space = self.view.space
        elite, watched = Elite(max(KEPT, 8 * count)), Elite(max(64, count))
        agent = Agent(len(space.knobs), Settings(), self.rng)
        points = starts(self, EPISODES)
        for kept in (elite, watched):
            kept.add(points, score(points))
        since = 0
        while self.steps < STEPS and since < PATIENCE:
            points, changed = self._lesson(agent, points, score, (elite, watched))
            since = 0 if changed else since + LESSON
        return elite.best_first(len(space.knobs))

    def _lesson(self, agent: Agent, points: Indices, score: Score, kept: tuple[Elite, Elite]) -> tuple[Indices, bool]:
        """Some steps of all episodes, and what they teach; where they ended, and whether the best have changed."""
        space, changed = self.view.space, False
        steps: list[Step] = []
        for _ in range(LESSON):
            states, mask = space.coordinates(points), space.mask[points[:, 0]].astype(np.float64)
            actions, before, values = agent.act(states, mask, self.rng)
            points = space.clip(points + actions - 1)
            rewards = score(points)
            kept[0].add(points, rewards)
            changed |= kept[1].add(points, rewards)
            steps.append(Step(states, actions, mask, before, values, rewards))
            self.steps += 1
        agent.learn(lesson(steps, agent.values(space.coordinates(points)), agent.settings), self.rng)
        return points, changed
