"""The search strategies by name.

A strategy is a class below `autotune.strategies.strategy.Strategy`, which says what it owes. A user's own strategy is
found by the entry point `autotune.strategies` of its package, which names the class:

    [project.entry-points."autotune.strategies"]
    hill = "mypackage.hill:HillClimbing"

An entry point that names a module alone stands for the class `Search` of that module.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.strategies.strategy import Strategy

__all__ = ["BACKEND_STRATEGIES", "DEFAULT", "GROUP", "SAMPLERS", "STRATEGIES", "default_sampler", "get", "names"]

GROUP = "autotune.strategies"
SAMPLERS = ("greedy", "adaptive")
DEFAULT = "beam"
# "module:Class" by name. To add a strategy, write its module and name it here: it can then be chosen, compared and
# tested.
STRATEGIES: dict[str, str] = {
    "beam": "autotune.strategies.beam:BeamSearch",
    "random": "autotune.strategies.random:RandomSearch",
    "annealing": "autotune.strategies.annealing:SimulatedAnnealing",
    "genetic": "autotune.strategies.genetic:GeneticSearch",
    "chameleon": "autotune.strategies.chameleon:ChameleonSearch",
    "droplet": "autotune.strategies.droplet:DropletSearch",
    "lfbo": "autotune.strategies.lfbo:LikelihoodFreeSearch",
}
# Strategies that the TVM back end implements, since they work on its schedules.
BACKEND_STRATEGIES = ("evolutionary",)
_DEFAULT_CLASS = "Search"


def names() -> tuple[str, ...]:
    """Return the names of all strategies that `submit` takes, the user's own included."""
    return tuple(dict.fromkeys([*BACKEND_STRATEGIES, *STRATEGIES, *_registered()]))


def get(name: str) -> type[Strategy]:
    """Load the class of a strategy.

    Raises:
        ValueError: There is none of this name (says which there are), it belongs to the back end, or it is not a
            strategy.
    """
    from autotune.strategies.strategy import Strategy  # here, because the command line loads no NumPy

    if name in BACKEND_STRATEGIES:
        raise ValueError(f"the strategy {name!r} belongs to the TVM back end; get its class there")
    places = {**_registered(), **STRATEGIES}
    if name not in places:
        raise ValueError(f"no strategy {name!r}; there are {', '.join(names())}")
    module, _, attribute = places[name].partition(":")
    attribute = attribute or _DEFAULT_CLASS
    try:
        strategy = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the strategy {name!r} does not load: {error}") from error
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise ValueError(f"{module}.{attribute} is not a class below autotune.strategies.strategy.Strategy")
    return strategy


def default_sampler(name: str) -> str:
    """Return the name of the sampler that a strategy uses unless the user asks for another.

    Raises:
        ValueError: There is no such strategy.
    """
    return "greedy" if name in BACKEND_STRATEGIES else get(name).sampler


def _registered() -> dict[str, str]:
    points = metadata.entry_points(group=GROUP)
    return {point.name: f"{point.module}:{point.attr}" if point.attr else point.module for point in points}
