"""TVM's evolutionary search, driven one batch at a time and rebuilt from the tuning log every time.

TVM keeps the measurements in the memory of its search object. Here the parents come from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir import ScheduleError
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.database import MemoryDatabase
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch as TVMSearch

from autotune.errors import DamagedFile
from autotune.storage.formats import Trial
from autotune.strategies.space import Indices, View, as_array
from autotune.strategies.strategy import Strategy
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.design_space import plain_trace, to_candidate, tune_context, tuning_record
from autotune.tvm_backend.search.features import FeatureExtractor
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Proposal, Request
from autotune.tvm_backend.search.tasks import program_hash
from autotune.tvm_backend.types import Database, IRModule, MeasureCandidate, Target, TuneContext

# Share of the first population that comes from the best trials.
_MEASURED_SHARE = 0.2


@dataclass(frozen=True)
class EvolutionParameters:
    """Parameters of TVM's search.

    Attributes:
        population: Schedules in a generation.
        generations: How often the population is mutated; 0 without a cost model.
        init_unmeasured: Random schedules that the first population has at least.
        mutation_probability: Of a schedule, in each generation.
    """

    population: int
    generations: int
    init_unmeasured: int
    mutation_probability: float


class EvolutionarySearch(Strategy):
    """Evolves schedules from the best trials, and finds their configurations, best predicted first.

    It ranks by the cost model itself, on features of every schedule, and so needs no cheap score. Schedules without a
    configuration are left out.
    """

    name = "evolutionary"
    needs_score = False

    def __init__(
        self,
        view: View,
        seed: int,
        *,
        knobs: Knobs,
        trials: Sequence[Trial],
        model: CostModel | None,
        parameters: EvolutionParameters,
    ) -> None:
        super().__init__(view, seed)
        self._knobs = knobs
        self._trials = trials
        self._model = model
        self._parameters = parameters

    def explore(self, count: int) -> Indices:
        seed = int(self.rng.integers(1, 2**31 - 1))
        wanted = 2 * self._parameters.population
        program = self._knobs.program
        target = self._knobs.target
        candidates = generate(program, target, self._trials, wanted, self._model, self._parameters, seed)
        self.steps += _steps(self._parameters, self._model)
        configurations = (self._knobs.find(plain_trace(item.sch.trace)) for item in candidates)
        return as_array((item for item in configurations if item is not None), len(self.view.space.knobs))


def propose_without_knobs(
    program: IRModule, target: Target, request: Request, parameters: EvolutionParameters
) -> Proposal:
    """Propose what TVM's search ranks highest, in a space that the knob view does not cover.

    There is no sampler and there are no warm starts, since both need knobs. The same arguments give the same
    candidates. An empty proposal means that the search finds nothing new.
    """
    excluded = request.known()
    wanted = request.count + len(excluded)
    ranked = generate(program, target, request.trials, wanted, request.model, parameters, request.seed)
    by_hash = {program_hash(item.sch.mod): item for item in ranked}
    new = [hash for hash in by_hash if hash not in excluded][: request.count]
    return Proposal([to_candidate(by_hash[hash], hash) for hash in new], _steps(parameters, request.model))


def _steps(parameters: EvolutionParameters, model: CostModel | None) -> int:
    return parameters.generations if model else 0


def generate(
    program: IRModule,
    target: Target,
    trials: Sequence[Trial],
    wanted: int,
    model: CostModel | None,
    parameters: EvolutionParameters,
    seed: int,
) -> list[MeasureCandidate]:
    """Run the search once, on one thread.

    Args:
        wanted: How many schedules to return at most; never more than twice the population.
        model: Ranks the schedules. Without one they are a random sample in random order.

    Returns:
        TVM's measure candidates, best predicted first. Trials may be among them.
    """
    strategy = TVMSearch(
        population_size=parameters.population,
        init_measured_ratio=_MEASURED_SHARE,
        init_min_unmeasured=parameters.init_unmeasured,
        genetic_num_iters=_steps(parameters, model),
        genetic_mutate_prob=parameters.mutation_probability,
        eps_greedy=0.0,
    )
    context = tune_context(program, target, strategy=strategy, seed=seed)
    batch = min(wanted, 2 * parameters.population)
    database = _database(program, target, trials, int(parameters.population * _MEASURED_SHARE))
    context.pre_tuning(batch, batch, None, database, _scorer(model, FeatureExtractor(program, target), seed))
    candidates = context.generate_measure_candidates()
    context.post_tuning()
    return list(candidates or [])


def _database(program: IRModule, target: Target, trials: Sequence[Trial], most: int) -> Database:
    """Return TVM's database with the best trials, at most `most` of them."""
    database = MemoryDatabase()
    workload = database.commit_workload(program)
    timed = sorted((trial for trial in trials if trial.median_us), key=lambda trial: trial.median_us or 0.0)
    for trial in timed[:most]:
        with suppress(DamagedFile, ScheduleError):  # of a model whose blocks have other names, for example
            database.commit_tuning_record(tuning_record(trial, workload, target))
    return database


def _scorer(model: CostModel | None, features: FeatureExtractor, seed: int) -> PyCostModel:
    """Return TVM's cost model interface over ours. Without a model the scores are random, drawn with the seed."""
    noise = np.random.default_rng(seed)

    @derived_object
    class Scorer(PyCostModel):  # type: ignore[misc]
        def predict(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> npt.NDArray[np.float64]:
            if model is None:
                return noise.random(len(candidates))
            return model.score(features.of_candidates(candidates))

    return Scorer()
