"""TVM's evolutionary search as a strategy on knobs, so that any sampler can pick from what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.storage.formats import Trial
from autotune.strategies.base import Strategy, View
from autotune.strategies.space import Indices, as_array
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.evolve import Evolution, generate
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.space import plain_trace


def evolutionary(
    knobs: Knobs, trials: Sequence[Trial], model: CostModel | None, evolution: Evolution
) -> Callable[[View, int], Strategy]:
    """A strategy that breeds schedules from the trials and finds their configurations, best predicted first."""

    class Search(Strategy):
        name = "evolutionary"
        modelled = False  # ranked on features already

        def explore(self, count: int) -> Indices:
            seed = int(self.rng.integers(1, 2**31 - 1))
            every = evolution.population * 2
            found = generate(knobs.program, knobs.target, trials, every, model, evolution, seed)
            self.steps += evolution.generations if model else 0
            configurations = (knobs.find(plain_trace(item.sch.trace)) for item in found)
            return as_array((item for item in configurations if item is not None), len(self.view.space.knobs))

    return Search
