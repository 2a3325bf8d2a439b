"""What every strategy keeps with every sampler, as a class of tests, and the synthetic task that they run on.

The task is a space with three sketches, a time for every configuration, invalid ones, and aliases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from autotune.strategies import SAMPLERS, samplers
from autotune.strategies.space import Configuration, Floats, Indices, Knob, Measured, Space, ValidConfiguration, View
from autotune.strategies.strategy import Strategy

_INVALID_MODULUS = 11
_INVALID_REMAINDER = 3
_ROUNDS = 40


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

    def view(self, trials: Sequence[Measured], pending: Sequence[Configuration] = (), scored: bool = True) -> View:
        """Return what a strategy sees after some trials.

        Args:
            trials: Measured so far.
            pending: Proposed, and not measured yet.
            scored: Whether there is a score, once a trial has a time.
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

        score = self.score if scored and any(trial.median_us for trial in trials) else None
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


@pytest.mark.parametrize("sampler", SAMPLERS)
class StrategyContract:
    """Subclass it as `TestYours` and name the strategy.

    Attributes:
        strategy: The class that is tested.
        max_validated: Configurations that it may have validated for each one that it proposes.
    """

    strategy: ClassVar[type[Strategy]]
    max_validated: ClassVar[int] = 12

    def propose(self, view: View, sampler: str, count: int = 8, seed: int = 1) -> list[Configuration]:
        """Return the batch that the strategy proposes, as the search stage asks for it."""
        return self.strategy(view, seed).propose(count, samplers.make(sampler, 0.1, synthesis=True))

    def landscape(self) -> Landscape:
        """Return a task with a large space."""
        return Landscape(make_space(20, 35, 12, 6, 8), (1, 15, 9, 4, 0, 6))

    def small(self) -> Landscape:
        """Return a task with a few valid programs."""
        return Landscape(make_space(2, 3, 1, 2), (1, 1, 1, 0, 1))

    def trials(self, landscape: Landscape) -> list[Measured]:
        """Return what a random search measured, two failures among it."""
        drawn = map(tuple, landscape.space.sample(np.random.default_rng(3), 60).tolist())
        valid = [item for item in drawn if landscape.us(item)]
        made = landscape.measure(list(dict.fromkeys(map(landscape.program, valid))))
        return [*made, Measured((0, 1, 2, 0, 0, 0), None), Measured((1, 5, 9, 3, 0, 0), None)]

    def test_the_same_view_and_seed_give_the_same_batch(self, sampler: str) -> None:
        task = self.landscape()
        trials = self.trials(task)
        first = self.propose(task.view(trials), sampler, seed=5)
        assert first == self.propose(task.view(trials), sampler, seed=5)
        assert first and first != self.propose(task.view(trials), sampler, seed=6)

    def test_every_configuration_is_new_valid_different_and_in_the_space(self, sampler: str) -> None:
        task = self.landscape()
        trials = self.trials(task)
        taken = {task.program(trial.configuration) for trial in trials}
        for seed in range(3):
            batch = self.propose(task.view(trials), sampler, count=12, seed=seed)
            assert 0 < len(batch) <= 12
            assert len(set(map(task.program, batch))) == len(batch)
            assert not taken & set(batch)
            assert all(item in task.space and task.us(item) for item in batch)

    def test_pending_configurations_are_not_proposed_again(self, sampler: str) -> None:
        task = self.landscape()
        trials = self.trials(task)
        pending = self.propose(task.view(trials), sampler)
        batch = self.propose(task.view(trials, pending), sampler)
        assert batch
        assert not set(map(task.program, pending)) & set(map(task.program, batch))

    def test_the_next_batch_follows_from_the_trials_alone(self, sampler: str) -> None:
        """A search that went through every batch, and one that is rebuilt from the log after a kill, go on alike."""
        task = self.landscape()
        went_on = self.trials(task)
        for seed in (1, 2, 3):
            went_on += task.measure(self.propose(task.view(went_on), sampler, seed=seed))
        rebuilt = [Measured(tuple(list(trial.configuration)), trial.median_us) for trial in went_on]
        here, there = (self.propose(task.view(trials), sampler, seed=4) for trials in (went_on, rebuilt))
        assert here == there

    def test_it_starts_with_no_trials_at_all(self, sampler: str) -> None:
        assert len(self.propose(self.landscape().view([]), sampler)) == 8

    def test_it_goes_on_when_every_trial_failed(self, sampler: str) -> None:
        task = self.landscape()
        failed = [Measured(item, None) for item in self.propose(task.view([]), sampler, count=20)]
        batch = self.propose(task.view(failed), sampler)
        assert batch and not {trial.configuration for trial in failed} & set(batch)

    def test_it_works_without_a_score(self, sampler: str) -> None:
        task = self.landscape()
        assert self.propose(task.view(self.trials(task), scored=False), sampler)

    def test_a_small_space_is_proposed_to_the_end_and_then_ends(self, sampler: str) -> None:
        task = self.small()
        trials: list[Measured] = []
        for seed in range(_ROUNDS):
            batch = self.propose(task.view(trials), sampler, seed=seed)
            if not batch:
                break
            trials += task.measure(batch)
        assert {trial.configuration for trial in trials} == task.valid()
        assert len(trials) == len(task.valid())

    def test_a_space_smaller_than_a_batch_gives_what_it_has(self, sampler: str) -> None:
        task = self.small()
        assert set(self.propose(task.view([]), sampler, count=1000)) <= task.valid()

    def test_a_space_of_one_configuration_is_measured_once(self, sampler: str) -> None:
        knobs = (Knob("sketch", (0,)), Knob("a", (1,)), Knob("b", (1,)))
        one = Landscape(Space(knobs, ((True, True, True),)), (0, 0, 0))
        assert self.propose(one.view([]), sampler) == [(0, 0, 0)]
        assert self.propose(one.view(one.measure([(0, 0, 0)])), sampler) == []

    def test_nothing_is_proposed_where_nothing_is_valid(self, sampler: str) -> None:
        task = self.landscape()
        task.barren = True
        assert self.propose(task.view([]), sampler) == []

    def test_it_validates_no_more_than_a_few_for_each_that_it_proposes(self, sampler: str) -> None:
        task = self.landscape()
        trials: Sequence[Measured] = self.trials(task)
        batch = self.propose(task.view(trials), sampler)
        assert len(set(task.validated)) <= self.max_validated * len(batch)

    def test_it_counts_its_steps(self, sampler: str) -> None:
        task = self.landscape()
        search = self.strategy(task.view(self.trials(task)), 1)
        search.propose(8, samplers.make(sampler, 0.1, synthesis=True))
        assert search.steps > 0
