"""A synthetic task: a space with three sketches, a time for every configuration, invalid ones, and aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.strategies.space import Configuration, Floats, Indices, Knob, Measured, Space, ValidConfiguration, View

_INVALID_MODULUS, _INVALID_REMAINDER = 11, 3


@dataclass
class Landscape:
    """A task that answers at once, the same to every caller.

    Times are a bowl with a ripple. A configuration is invalid where its first two knobs add up to 3 modulo 11. In
    sketch 2 the last knob has no effect: all its values give the same program, whose name has the value 0.

    Attributes:
        space: The knobs; `make_space` makes such a space.
        lowest: The configuration at the bottom of the bowl.
        barren: Whether every configuration is invalid.
        validated: Every configuration that a strategy has had validated, in order.
    """

    space: Space
    lowest: Configuration
    barren: bool = False
    validated: list[Configuration] = field(default_factory=list)

    def us(self, configuration: Sequence[int]) -> float | None:
        """Return the time of a configuration in microseconds; None where it is invalid."""
        if self.barren or (configuration[1] + configuration[2]) % _INVALID_MODULUS == _INVALID_REMAINDER:
            return None
        gaps = [
            (index - low) / size for index, low, size in zip(configuration, self.lowest, self.space.sizes, strict=True)
        ]
        ripple = 0.1 * (sum(configuration) % 3)
        return float(100.0 * (1.0 + 10.0 * sum(gap * gap for gap in gaps) + ripple + abs(configuration[0] - 1)))

    def program(self, configuration: Configuration) -> Configuration:
        """Return the configuration that stands for the program of another one."""
        return (*configuration[:-1], 0) if configuration[0] == 2 else configuration

    def score(self, configurations: Indices) -> Floats:
        """Return estimates of the throughput, [n], without the detail of `us`."""
        gaps = (configurations - np.array(self.lowest)) / self.space.sizes
        times = 1.0 + 10.0 * (gaps**2).sum(axis=1) + 0.1 * (configurations.sum(axis=1) % 3)
        invalid = (configurations[:, 1] + configurations[:, 2]) % _INVALID_MODULUS == _INVALID_REMAINDER
        return np.asarray(np.where(invalid, 0.0, 1.0 / (times + np.abs(configurations[:, 0] - 1))))

    def view(self, trials: Sequence[Measured], pending: Sequence[Configuration] = (), known: bool = True) -> View:
        """Return what a strategy sees after some trials.

        Args:
            trials: Measured so far.
            pending: Proposed, and not measured yet.
            known: Whether there is a score, once a trial has a time.
        """
        seen = {self.program(trial.configuration) for trial in trials} | set(map(self.program, pending))
        answers: dict[Configuration, ValidConfiguration | None] = {}

        def validate(configurations: Sequence[Configuration]) -> list[ValidConfiguration | None]:
            self.validated += configurations
            for item in configurations:
                assert item in self.space, f"{item} is not in the space"
                program = self.program(item)
                if item not in answers:
                    new = program not in seen and self.us(item) is not None
                    answers[item] = ValidConfiguration(program, None) if new else None
                    if new:
                        answers[program] = answers[item]
                        seen.add(program)
            return [answers[item] for item in configurations]

        score = self.score if known and any(trial.median_us for trial in trials) else None
        return View(self.space, tuple(trials), score, validate, frozenset(pending))

    def measure(self, configurations: Sequence[Configuration]) -> list[Measured]:
        """Return trials of configurations."""
        return [Measured(item, self.us(item)) for item in configurations]

    def valid(self) -> set[Configuration]:
        """Return every program there is, by its configuration."""
        return {self.program(item) for item in self.space if self.us(item) is not None}


def make_space(*sizes: int) -> Space:
    """Return a space of three sketches and knobs of these sizes; the second sketch leaves out the last knob but one."""
    knobs = (Knob("sketch", (0, 1, 2)), *(Knob(f"knob{index}", tuple(range(size))) for index, size in enumerate(sizes)))
    some = tuple(index != len(sizes) - 1 for index in range(len(sizes) + 1))
    every = (True,) * (len(sizes) + 1)
    return Space(knobs, (every, some, every))
