"""The search strategies by name. Each is one module with a class `Search`; see `base.py` for what it owes.

A user's own strategy is found by the entry point `autotune.strategies` of its package, which names such a module:

    [project.entry-points."autotune.strategies"]
    hill = "mypackage.hill"
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.strategies.base import Strategy

GROUP = "autotune.strategies"
DEFAULT = "beam"
# To add a strategy, write its file and name it here: it can be chosen, compared and tested from then on.
STRATEGIES: dict[str, str] = {
    "beam": "autotune.strategies.beam",
    "random": "autotune.strategies.random",
    "annealing": "autotune.strategies.annealing",
    "genetic": "autotune.strategies.genetic",
    "chameleon": "autotune.strategies.chameleon",
    "droplet": "autotune.strategies.droplet",
}
# TVM's own search works on schedules, not on knobs; the backend drives it.
FOREIGN = ("evolutionary",)
SAMPLERS = ("greedy", "adaptive")


def names() -> tuple[str, ...]:
    """Every strategy that `submit` takes, the user's own included."""
    return tuple(dict.fromkeys([*FOREIGN, *STRATEGIES, *_registered()]))


def get(name: str) -> type[Strategy]:
    """The class of a strategy that works on knobs.

    Raises:
        ValueError: there is none of this name (says which there are), or it is not a strategy.
    """
    from autotune.strategies.base import Strategy

    known = {**_registered(), **STRATEGIES}
    if name not in known:
        raise ValueError(f"no strategy {name!r}; there are {', '.join(names())}")
    try:
        found = import_module(known[name]).Search
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the strategy {name!r} does not load: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ValueError(f"{known[name]}.Search is not a class below autotune.strategies.base.Strategy")
    return found


def default_sampler(name: str) -> str:
    """The sampler that a strategy goes with unless another is asked for.

    Raises:
        ValueError: there is no such strategy.
    """
    return "greedy" if name in FOREIGN else get(name).sampler


def _registered() -> dict[str, str]:
    return {point.name: point.module for point in metadata.entry_points(group=GROUP)}
