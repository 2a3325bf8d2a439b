"""What the simulator plays: a machine, jobs, and how long their stages take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from autotune.planning.view import Kind, MachineResources

_NORMAL = NormalDist()
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Duration:
    """The distribution of a stage's length in seconds.

    It is log-normal with this mean and this standard deviation of the logarithm. With `samples`, it is one of the
    samples at random.
    """

    mean: float
    spread: float = 0.0
    samples: tuple[float, ...] = ()

    def draw(self, chance: float) -> float:
        """Return the length at a quantile.

        Args:
            chance: The quantile, above 0 and below 1.
        """
        if self.samples:
            return self.samples[int(chance * len(self.samples))]
        if not self.spread:
            return self.mean
        return self.mean * math.exp(self.spread * _NORMAL.inv_cdf(chance) - self.spread**2 / 2)


@dataclass(frozen=True)
class SimulatedJob:
    """A job to play.

    Attributes:
        device: The kind of device that it measures on.
        tasks: How many tasks it has.
        trials: Its budget.
        seconds: The lengths of its stages with a full batch of `trials_per_round` candidates.
        submitted_at: Seconds from the start of the scenario.
        deadline: Seconds from the start of the scenario; None for no deadline.
    """

    id: int
    name: str
    device: str
    tasks: int
    trials: int
    seconds: Mapping[Kind, Duration]
    trials_per_round: int = 16
    submitted_at: float = 0.0
    priority: int = 0
    deadline: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A machine and its jobs. With one seed, a stage is as long under every policy."""

    machine: MachineResources
    jobs: tuple[SimulatedJob, ...]
    seed: int = 0

    def seconds(self, job: SimulatedJob, task: int, round: int, kind: Kind, count: int) -> float:
        """Return how many seconds a stage takes if it shares nothing.

        Args:
            task: The index of the task.
            round: The number of the round.
            count: The size of its batch. The length of a build or a measurement is proportional to it.
        """
        duration = job.seconds[kind]
        certain = not duration.spread and not duration.samples
        value = duration.draw(0.5 if certain else chance(self.seed, job.id, task, round, kind))
        return value * count / job.trials_per_round if kind in ("build", "measure") else value


def chance(seed: int, job: int, task: int, round: int, kind: Kind) -> float:
    """Return a stage's quantile for `Duration.draw`; the same for the same arguments."""
    return _mix(seed, job, task, round, len(kind) * 256 + ord(kind[0]))


def _mix(*numbers: int) -> float:
    """Return a pseudo-random number above 0 and below 1 that the given numbers decide (after splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state + 0.5) / 2**64 if state < _MASK - 4096 else 0.5
