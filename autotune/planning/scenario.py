"""What the simulator plays: a machine, jobs, and how long their stages take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from autotune.planning.view import Kind, Machine

_NORMAL = NormalDist()
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Duration:
    """Seconds of a stage: `mean`, spread log-normally by `spread`; or one of the `samples`, taken at random."""

    mean: float
    spread: float = 0.0
    samples: tuple[float, ...] = ()

    def draw(self, chance: float) -> float:
        """A value; `chance` is uniform between 0 and 1."""
        if self.samples:
            return self.samples[int(chance * len(self.samples))]
        if not self.spread:
            return self.mean
        return self.mean * math.exp(self.spread * _NORMAL.inv_cdf(chance) - self.spread**2 / 2)


@dataclass(frozen=True)
class SimulatedJob:
    """A job to play. `seconds` are those of a stage with a full batch of `trials_per_round`."""

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
    """A machine and its jobs. The same seed gives every stage the same length, under every policy."""

    machine: Machine
    jobs: tuple[SimulatedJob, ...]
    seed: int = 0

    def seconds(self, job: SimulatedJob, task: int, round: int, kind: Kind, count: int) -> float:
        """How long a stage takes when it has its resources to itself."""
        duration = job.seconds[kind]
        certain = not duration.spread and not duration.samples
        value = duration.draw(0.5 if certain else chance(self.seed, job.id, task, round, kind))
        # Searching and training take their time whatever the batch; building and measuring go by candidate.
        return value * count / job.trials_per_round if kind in ("build", "measure") else value


def chance(seed: int, job: int, task: int, round: int, kind: Kind) -> float:
    """A stage's luck, the same whenever it is asked for: what `Duration.draw` takes."""
    return _mixed(seed, job, task, round, len(kind) * 256 + ord(kind[0]))


def _mixed(*numbers: int) -> float:
    """A number above 0 and below 1 that looks random and is the same for the same numbers (after splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state + 0.5) / 2**64 if state < _MASK - 4096 else 0.5
