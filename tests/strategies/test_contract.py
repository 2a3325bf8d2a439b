"""Every strategy keeps the contract that `autotune.testing` ships, the user's own included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autotune import strategies, testing
from autotune.testing import Landscape, StrategyContract

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "own-strategy.md").read_text()
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]


@pytest.mark.usefixtures("brief")
class Contract(StrategyContract):
    """The contract, with few chains and steps."""


for _name in strategies.STRATEGIES:
    globals()[f"Test{_name.capitalize()}"] = type("Test", (Contract,), {"strategy": strategies.get(_name)})


class TestAStrategyOfTheUsers(Contract):
    strategy = property(lambda self: strategies.get("hill"))  # it is registered when the tests run


# Strategies that break a promise, and the test that finds it out.
BROKEN = """
import itertools

from autotune.strategies.strategy import Strategy
from autotune.testing import Landscape, StrategyContract

CALLS = itertools.count()


class Random(Strategy):
    name = "random"
    modelled = False

    def explore(self, count):
        self.steps += 1
        return self.view.space.sample(self.rng, 8 * count)


class Repeating(Random):
    def propose(self, count, sampler):
        return [tuple(row) for row in self.view.ranked()[:count].tolist()]


class Unseeded(Random):
    def propose(self, count, sampler):
        return super().propose(count, sampler)[: 1 + next(CALLS) % 3]


class Unvarying(Random):
    def __init__(self, view, seed):
        super().__init__(view, 1)


class Exceeding(Random):
    def propose(self, count, sampler):
        return super().propose(2 * count, sampler)


class Invalid(Random):
    def propose(self, count, sampler):
        return [(0, 1, 2, 0, 0, 0)[: len(self.view.space.sizes)]]


for kind in Random, Repeating, Unseeded, Unvarying, Exceeding, Invalid:
    globals()[f"Test{kind.__name__}"] = type("Test", (StrategyContract,), {"strategy": kind})
"""
FOUND_OUT = {
    "Repeating": "test_every_configuration_is_new_valid_different_and_in_the_space",
    "Unseeded": "test_the_same_view_and_seed_give_the_same_batch",
    "Unvarying": "test_the_same_view_and_seed_give_the_same_batch",
    "Exceeding": "test_every_configuration_is_new_valid_different_and_in_the_space",
    "Invalid": "test_every_configuration_is_new_valid_different_and_in_the_space",
}


def test_of_two_configurations_of_one_program_the_second_is_no_candidate(landscape: Landscape) -> None:
    one, other = (2, 15, 9, 4, 0, 6), (2, 15, 9, 4, 0, 7)
    first, second = landscape.view([]).validate([one, other])
    assert first is not None and first.configuration == landscape.program(other) and second is None


def test_a_strategy_that_breaks_its_promises_fails(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    done = subprocess.run([*PYTEST, "-rf", "-k", "greedy", str(tmp_path)], capture_output=True, text=True, timeout=120)
    failed = set(re.findall(r"^FAILED \S*::Test(\w+)::(\w+)\[greedy\]", done.stdout, re.MULTILINE))
    assert failed >= set(FOUND_OUT.items()), done.stdout
    assert "Random" not in {strategy for strategy, _ in failed}


def test_the_documentation_shows_how_to_use_it(tmp_path: Path, users_own: str) -> None:
    """The example of the page and of the package, on the strategy that the documentation shows."""
    fenced = re.search(r"```python\n((?:(?!```).)*strategy = HillClimbing)\n```", PAGE, re.DOTALL)
    indented = re.search(r"((?: {4}.*\n|\n)*? {4}.*strategy = HillClimbing)", testing.__doc__ or "")
    shown = [textwrap.dedent(block[1]).split() for block in (fenced, indented) if block]
    assert fenced and len(shown) == 2 and shown[0] == shown[1]
    hill = strategies.get(users_own)
    code = re.sub(r"\bHillClimbing\b", hill.__name__, fenced[1]).replace("mypackage.hill", hill.__module__)
    (tmp_path / "test_hill.py").write_text(code)
    done = subprocess.run(
        [*PYTEST, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0 and "26 passed" in done.stdout, done.stdout
