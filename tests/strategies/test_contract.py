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
from autotune.testing import StrategyContract

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "own-strategy.md").read_text()
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]


@pytest.mark.usefixtures("brief")
class Contract(StrategyContract):
    """The contract, with few chains and steps."""


for _name in strategies.STRATEGIES:
    globals()[f"Test{_name.capitalize()}"] = type("Test", (Contract,), {"strategy": strategies.get(_name)})


class TestAStrategyOfTheUsers(Contract):
    strategy = property(lambda self: strategies.get("hill"))  # it is registered when the tests run


BREAKS = {
    "it repeats what was measured": "return [tuple(row) for row in self.view.ranked()[:count].tolist()]",
    "it depends on more than the seed": "return super().propose(count, sampler)[: 1 + next(CALLS) % 3]",
    "it proposes more than it may": "return super().propose(2 * count, sampler)",
    "it proposes what is invalid": "return [(0, 1, 2, 0, 0, 0)[: len(self.view.space.sizes)]]",
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_strategy_that_breaks_its_promises_fails(tmp_path: Path, how: str) -> None:
    code = f"""\
        import itertools
        from autotune.strategies.strategy import Strategy
        from autotune.testing import StrategyContract

        CALLS = itertools.count()

        class Broken(Strategy):
            name = "broken"
            modelled = False

            def explore(self, count):
                self.steps += 1
                return self.view.space.sample(self.rng, 8 * count)

            def propose(self, count, sampler):
                {BREAKS[how]}

        class TestBroken(StrategyContract):
            strategy = Broken
    """
    (tmp_path / "test_broken.py").write_text(textwrap.dedent(code))
    done = subprocess.run([*PYTEST, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout


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
