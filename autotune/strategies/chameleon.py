"""Chameleon's Adaptive Exploration: an agent learns in which direction to move the knobs.

(Ahn et al., ICLR 2020, section 3.2.) Its Adaptive Sampling and Sample Synthesis are the sampler `adaptive`.

The paper's ablation is: SA `annealing` with `greedy`, AE `chameleon` with `greedy`, SA+AS `annealing` with `adaptive`,
AE+AS `chameleon` with `adaptive`.

The agent learns by proximal policy optimisation (Schulman et al., 2017), in NumPy, and moves every knob by -1, 0 or +1.
The gradients are written out by hand and checked against finite differences in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from autotune.strategies.annealing import KEPT, PATIENCE, TopK, starts
from autotune.strategies.space import Floats, Indices, Score
from autotune.strategies.strategy import Strategy

MOVES = 3
Parameters = dict[str, Floats]
EPISODES = 128
STEPS = 500
# Steps of all episodes between two updates of the agent. With a single update at the end, the agent would never act
# on what it has learnt.
STEPS_PER_UPDATE = 10


@dataclass(frozen=True)
class AgentSettings:
    """The hyperparameters of Chameleon (Ahn et al., ICLR 2020, table 9), but for the width of the layers.

    Attributes:
        step: Learning rate of Adam.
        discount, gae: Gamma and lambda of the generalised advantage estimate.
        epochs: Passes over a batch.
        clip: Bound of the probability ratio's distance from 1.
        value_weight, entropy_weight: Weights of these terms in the loss.
        width: Neurons of a hidden layer. The paper does not give it.
    """

    step: float = 1e-3
    discount: float = 0.9
    gae: float = 0.99
    epochs: int = 3
    clip: float = 0.3
    value_weight: float = 1.0
    entropy_weight: float = 0.1
    width: int = 32


@dataclass(frozen=True)
class EpisodeStep:
    """One step of all episodes.

    Attributes:
        states: Positions of the knobs in [0, 1], [episodes, knobs].
        actions: 0, 1 or 2 for a move by -1, 0 or +1, [episodes, knobs].
        mask: 1 for the knobs that the sketch uses, else 0, [episodes, knobs].
        log_probabilities: Of the actions under the policy that chose them, [episodes].
        values: The critic's estimates of the states, [episodes].
        rewards: [episodes].
    """

    states: Floats
    actions: Indices
    mask: Floats
    log_probabilities: Floats
    values: Floats
    rewards: Floats


@dataclass(frozen=True)
class TrainingBatch:
    """Steps to learn from, n in all: `states`, `actions` and `mask` are [n, knobs], the others [n].

    The first four are those of `EpisodeStep`. `advantages` and `returns` are estimates of what the actions gained
    over the critic's expectation, and of the discounted rewards from the state on.
    """

    states: Floats
    actions: Indices
    mask: Floats
    log_probabilities: Floats
    advantages: Floats
    returns: Floats

    def __getitem__(self, rows: Indices) -> TrainingBatch:
        return TrainingBatch(*(getattr(self, item.name)[rows] for item in fields(self)))


@dataclass(frozen=True)
class _Forward:
    shared: Floats
    policy: Floats
    critic: Floats
    logs: Floats
    values: Floats


class Agent:
    """An actor and a critic with a common first layer: state -> tanh -> (tanh -> 3 logits a knob, tanh -> value)."""

    def __init__(self, knobs: int, settings: AgentSettings, rng: np.random.Generator) -> None:
        self.settings = settings
        self.knobs = knobs
        width = settings.width
        shapes = {"shared": (knobs, width), "policy": (width, width), "critic": (width, width)}
        shapes |= {"logits": (width, knobs * MOVES), "value": (width, 1)}
        self.parameters: Parameters = {}
        for name, (rows, columns) in shapes.items():
            scale = 0.1 if name == "logits" else 1.0  # the first policy is nearly uniform
            self.parameters[name] = rng.normal(0.0, scale / np.sqrt(rows), (rows, columns))
            self.parameters[f"{name}_bias"] = np.zeros(columns)
        self._mean = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self._updates = 0

    def _forward(self, states: Floats) -> _Forward:
        p = self.parameters
        shared = np.tanh(states @ p["shared"] + p["shared_bias"])
        policy = np.tanh(shared @ p["policy"] + p["policy_bias"])
        critic = np.tanh(shared @ p["critic"] + p["critic_bias"])
        logits = (policy @ p["logits"] + p["logits_bias"]).reshape(-1, self.knobs, MOVES)
        logits = logits - np.maximum(np.maximum(logits[..., 0], logits[..., 1]), logits[..., 2])[..., None]
        logs = logits - np.log(_over_moves(np.exp(logits)))[..., None]
        return _Forward(shared, policy, critic, logs, (critic @ p["value"] + p["value_bias"])[:, 0])

    def act(self, states: Floats, mask: Floats, rng: np.random.Generator) -> tuple[Indices, Floats, Floats]:
        """Draw actions from the policy.

        Args:
            states: [n, knobs].
            mask: 1 for the knobs that the sketch uses, [n, knobs].

        Returns:
            The actions, [n, knobs]; the logarithms of their probabilities, [n]; the states' values, [n].
        """
        forward = self._forward(states)
        probabilities = np.exp(forward.logs)
        drawn = rng.random(states.shape)
        down = probabilities[..., 0]
        actions = (drawn > down).astype(np.int64) + (drawn > down + probabilities[..., 1])
        return actions, _chosen(forward.logs, actions, mask), forward.values

    def values(self, states: Floats) -> Floats:
        """Return the critic's estimate of the discounted rewards from each state on, [n]."""
        return self._forward(states).values

    def loss(self, batch: TrainingBatch) -> tuple[float, Parameters]:
        """Return the loss and its gradients: clipped objective, value error and entropy as one number to minimise."""
        s = self.settings
        n = len(batch.states)
        forward = self._forward(batch.states)
        ratio = np.exp(_chosen(forward.logs, batch.actions, batch.mask) - batch.log_probabilities)
        plain = ratio * batch.advantages
        clipped = np.clip(ratio, 1 - s.clip, 1 + s.clip) * batch.advantages
        probabilities = np.exp(forward.logs)
        entropies = -_over_moves(probabilities * forward.logs)
        error = forward.values - batch.returns
        loss = -np.minimum(plain, clipped).mean() + s.value_weight * (error**2).mean()
        loss -= s.entropy_weight * (entropies * batch.mask).sum(axis=1).mean()
        pull = np.where(plain <= clipped, -plain, 0.0)[:, None, None]
        taken = np.eye(MOVES)[batch.actions] - probabilities
        spread = s.entropy_weight * probabilities * (forward.logs + entropies[:, :, None])
        to_logits = (pull * taken + spread) * batch.mask[:, :, None] / n
        to_values = 2 * s.value_weight * error / n
        return float(loss), self._backward(batch.states, forward, to_logits.reshape(n, -1), to_values[:, None])

    def _backward(self, states: Floats, forward: _Forward, to_logits: Floats, to_values: Floats) -> Parameters:
        p = self.parameters
        to_policy = to_logits @ p["logits"].T * (1 - forward.policy**2)
        to_critic = to_values @ p["value"].T * (1 - forward.critic**2)
        to_shared = (to_policy @ p["policy"].T + to_critic @ p["critic"].T) * (1 - forward.shared**2)
        layers = {
            "shared": (states, to_shared),
            "policy": (forward.shared, to_policy),
            "critic": (forward.shared, to_critic),
            "logits": (forward.policy, to_logits),
            "value": (forward.critic, to_values),
        }
        gradients = {name: given.T @ error for name, (given, error) in layers.items()}
        return gradients | {f"{name}_bias": error.sum(axis=0) for name, (_, error) in layers.items()}

    def learn(self, batch: TrainingBatch, rng: np.random.Generator, minibatches: int = 4) -> None:
        """Make `epochs` passes over the batch, in `minibatches` steps of Adam each."""
        for _ in range(self.settings.epochs):
            for rows in np.array_split(rng.permutation(len(batch.states)), minibatches):
                self._adam(self.loss(batch[rows])[1])

    def _adam(self, gradients: Parameters) -> None:
        """Make a step of Adam (Kingma and Ba, 2015) with its default decay rates."""
        self._updates += 1
        for name, gradient in gradients.items():
            self._mean[name] += 0.1 * (gradient - self._mean[name])
            self._square[name] += 0.001 * (gradient**2 - self._square[name])
            mean = self._mean[name] / (1 - 0.9**self._updates)
            square = self._square[name] / (1 - 0.999**self._updates)
            self.parameters[name] -= self.settings.step * mean / (np.sqrt(square) + 1e-8)


def _chosen(logs: Floats, actions: Indices, mask: Floats) -> Floats:
    """Return the log probability of all moves of a step, [n]. Knobs that are not used do not count."""
    chosen = np.where(actions == 0, logs[..., 0], np.where(actions == 1, logs[..., 1], logs[..., 2]))
    return np.asarray((chosen * mask).sum(axis=1))


def _over_moves(values: Floats) -> Floats:
    """Return the sum over the moves, [..., 3] to [...]. A reduction of NumPy over three values takes longer."""
    return np.asarray(values[..., 0] + values[..., 1] + values[..., 2])


def advantages(rewards: Floats, values: Floats, settings: AgentSettings) -> Floats:
    """Return generalised advantage estimates, [steps, n].

    Args:
        rewards: [steps, n].
        values: The critic's estimates, [steps + 1, n]; the last row is of the state after the last step.
    """
    estimates = np.zeros_like(rewards)
    following = np.zeros(rewards.shape[1])
    for step in range(len(rewards) - 1, -1, -1):
        residual = rewards[step] + settings.discount * values[step + 1] - values[step]
        following = residual + settings.discount * settings.gae * following
        estimates[step] = following
    return estimates


def training_batch(steps: Sequence[EpisodeStep], last_values: Floats, settings: AgentSettings) -> TrainingBatch:
    """Turn some steps of all episodes into a batch to learn from.

    Args:
        last_values: The critic's estimates of the states after the last step, [episodes].
    """
    values = np.array([*(step.values for step in steps), last_values])
    gains = advantages(np.array([step.rewards for step in steps]), values, settings)
    return TrainingBatch(
        states=np.concatenate([step.states for step in steps]),
        actions=np.concatenate([step.actions for step in steps]),
        mask=np.concatenate([step.mask for step in steps]),
        log_probabilities=np.concatenate([step.log_probabilities for step in steps]),
        advantages=((gains - gains.mean()) / (gains.std() + 1e-8)).ravel(),
        returns=(gains + values[:-1]).ravel(),
    )


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
        agent = self.agent()
        points = starts(self, EPISODES)
        for best in (kept, watched):
            best.add(points, score(points))
        unchanged = 0
        while self.steps < STEPS and unchanged < PATIENCE:
            points, changed = self._update(agent, points, score, kept, watched)
            unchanged = 0 if changed else unchanged + STEPS_PER_UPDATE
        return kept.best_first(len(space.knobs))

    def agent(self) -> Agent:
        """Return the agent, which has learnt nothing yet."""
        return Agent(len(self.view.space.knobs), AgentSettings(), self.rng)

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
