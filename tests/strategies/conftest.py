"""The synthetic task that strategies are tested on, and a package of a user with a strategy."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a worker: small matrices are slower on more

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autotune.strategies import annealing, chameleon, strategy
from autotune.strategies.space import Measured
from autotune.testing import Landscape, make_space

OWN = "hill"


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
    shown = re.search(r"named by an entry point\):\n\n(.*)", strategy.__doc__ or "", re.S)
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
        ground = on or landscape
        trials = list[Measured]()
        for round in range(rounds):
            search = strategies.get(name)(ground.view(trials), seed + round)
            trials += ground.measure(search.propose(count, sampler))
        return trials

    return run
