"""A synthetic task: a space with three sketches, a time for every configuration, invalid ones, and aliases."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a worker: small matrices are slower on more

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autotune.strategies import annealing, base, chameleon
from autotune.strategies.space import Configuration, Indices, Knob, Space
from autotune.strategies.view import Measured, ValidConfiguration, View

OWN = "hill"


@dataclass
class Landscape:
    """`times` is a bowl with a ripple; a configuration is invalid where its first two knobs add up to 3 modulo 11.

    The last knob is inert in sketch 2: all its values stand for the same program, of which 0 is the name.
    """

    space: Space
    lowest: Configuration
    validated: list[Configuration] = field(default_factory=list)

    def us(self, configuration: Sequence[int]) -> float | None:
        if (configuration[1] + configuration[2]) % 11 == 3:
            return None
        gaps = [(at - low) / size for at, low, size in zip(configuration, self.lowest, self.space.sizes, strict=True)]
        ripple = 0.1 * (sum(configuration) % 3)
        return 100.0 * (1.0 + 10.0 * sum(gap * gap for gap in gaps) + ripple + abs(configuration[0] - 1))

    def program(self, configuration: Configuration) -> Configuration:
        return (*configuration[:-1], 0) if configuration[0] == 2 else configuration

    def score(self, configurations: Indices) -> Any:
        gaps = (configurations - np.array(self.lowest)) / self.space.sizes
        times = 1.0 + 10.0 * (gaps**2).sum(axis=1) + 0.1 * (configurations.sum(axis=1) % 3)
        invalid = (configurations[:, 1] + configurations[:, 2]) % 11 == 3
        return np.where(invalid, 0.0, 1.0 / (times + np.abs(configurations[:, 0] - 1)))

    def view(self, trials: Sequence[Measured], pending: Sequence[Configuration] = (), known: bool = True) -> View:
        seen = {self.program(trial.configuration) for trial in trials} | set(map(self.program, pending))
        answers: dict[Configuration, ValidConfiguration | None] = {}

        def validate(configurations: Sequence[Configuration]) -> list[ValidConfiguration | None]:
            self.validated += configurations
            for item in configurations:
                assert item in self.space
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
        return [Measured(item, self.us(item)) for item in configurations]

    def valid(self) -> set[Configuration]:
        return {self.program(item) for item in self.space if self.us(item) is not None}


def make_space(*sizes: int) -> Space:
    """Three sketches; the second one leaves out the last knob but one."""
    knobs = (Knob("sketch", (0, 1, 2)), *(Knob(f"knob{at}", tuple(range(size))) for at, size in enumerate(sizes)))
    some = tuple(at != len(sizes) - 1 for at in range(len(sizes) + 1))
    every = (True,) * (len(sizes) + 1)
    return Space(knobs, (every, some, every))


@pytest.fixture
def landscape() -> Landscape:
    space = make_space(20, 35, 12, 6, 8)
    return Landscape(space, (1, 15, 9, 4, 0, 6))


@pytest.fixture
def small() -> Landscape:
    return Landscape(make_space(2, 3, 1, 2), (1, 1, 1, 0, 1))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer chains and steps: enough to keep a promise in, not to search well."""
    for module, chains in ((annealing, "CHAINS"), (chameleon, "EPISODES")):
        monkeypatch.setattr(module, chains, 16)
        monkeypatch.setattr(module, "STEPS", 40)


@pytest.fixture(scope="session", autouse=True)
def users_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package of a user whose strategy is the one in the documentation, registered by its entry point."""
    folder = tmp_path_factory.mktemp("site")
    shown = re.search(r"named by an entry point\):\n\n(.*)", base.__doc__ or "", re.S)
    assert shown is not None
    (folder / "users_hill.py").write_text(textwrap.dedent(shown[1]))
    told = folder / "users_hill-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: users-hill\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[autotune.strategies]\n{OWN} = users_hill:HillClimbing\n")
    sys.path.insert(0, str(folder))
    yield OWN
    sys.path.remove(str(folder))


@pytest.fixture
def tune(landscape: Landscape) -> Callable[..., list[Measured]]:
    """Rounds of a strategy on the landscape, as the daemon would run them: each from the trials alone."""
    from autotune import strategies

    def run(name: str, sampler: Any, rounds: int, count: int = 8, seed: int = 1, on: Any = None) -> list[Measured]:
        ground, trials = on or landscape, list[Measured]()
        for round in range(rounds):
            search = strategies.get(name)(ground.view(trials), seed + round)
            trials += ground.measure(search.propose(count, sampler))
        return trials

    return run
