"""Propose candidates that were never measured, by the strategy and the cost model of a job."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune import strategies
from autotune.errors import WorkerError
from autotune.stages import cost_model_file, transfer_learning
from autotune.stages.context import StageContext
from autotune.storage.formats import Candidate, TaskSpec, Trial
from autotune.storage.tuning_log import trials_to_learn_from
from autotune.tvm_backend.types import PlainTrace

if TYPE_CHECKING:
    from autotune.strategies.space import View
    from autotune.strategies.strategy import Strategy
    from autotune.tvm_backend.search.cost_model import CostModel
    from autotune.tvm_backend.search.evolutionary import EvolutionParameters
    from autotune.tvm_backend.search.knobs import Knobs
    from autotune.tvm_backend.search.propose import Request

_EVOLUTIONARY = "evolutionary"
_POPULATION_PER_CANDIDATE = 6
_WARM_STARTS_PER_TASK = 2


def propose(
    stage: StageContext, pending: Sequence[Candidate], excluded: Collection[str]
) -> tuple[list[Candidate], dict[str, int]]:
    """Return the best schedules known of the task elsewhere, and as many candidates of the strategy as are left.

    Args:
        stage: The search.
        pending: Candidates of the task's other rounds.
        excluded: Hashes that must not be proposed.

    Returns:
        The candidates, and the counts of the search.
    """
    trials = trials_to_learn_from(stage.log())
    rebuilt = transfer_learning.first_candidates(stage, trials, pending, excluded)
    if not rebuilt:
        return _propose(stage, trials, pending, excluded)
    candidates = list[Candidate]()
    counts = {"steps": 0}
    if left := stage.count - len(rebuilt):
        candidates, counts = _propose(replace(stage, count=left), trials, [*pending, *rebuilt], excluded)
    return [*rebuilt, *candidates], {**counts, "known_elsewhere": len(rebuilt)}


def _propose(
    stage: StageContext, trials: Sequence[Trial], pending: Sequence[Candidate], excluded: Collection[str]
) -> tuple[list[Candidate], dict[str, int]]:
    """Return candidates, and the counts of the search. Hashes in `excluded` must not be proposed."""
    from autotune.strategies import samplers
    from autotune.tvm_backend.search.evolutionary import propose_without_knobs
    from autotune.tvm_backend.search.propose import Request, propose

    model = _model(stage, trials)
    seed = seed_of(stage)
    request = Request(trials, pending, stage.count, model, seed, frozenset(excluded), _warm_starts(stage))
    knobs = _knobs(stage)
    if knobs is None:
        proposal = propose_without_knobs(stage.program, stage.target, request, _evolution(stage))
    else:
        search = stage.config.search
        sampler = samplers.make(stage.spec.sampler, search.epsilon, search.synthesis)
        proposal = propose(knobs, _strategy(stage, knobs, request), sampler, request)
    counts = {name: getattr(proposal, name) for name in ("steps", "replayed", "invalid", "repeated")}
    return proposal.candidates, counts


def _model(stage: StageContext, trials: Sequence[Trial]) -> CostModel | None:
    """Return the job's cost model, trained now where it is damaged or missing. Without trials, return the prior."""
    from autotune.tvm_backend.search.cost_model import CostModel, prior
    from autotune.tvm_backend.search.features import WIDTH

    if stage.attempt:
        cost_model_file.forget_model(stage.paths)  # reading it may have ended the last attempt
    intact = cost_model_file.is_intact(stage.paths)
    if not intact and (trials or transfer_learning.has_trials(stage)):
        cost_model_file.update_model(stage)
        intact = cost_model_file.is_intact(stage.paths)
    model = CostModel.load(stage.paths.cost_model, WIDTH) if intact else None
    if model is None and stage.config.search.prior:
        model = prior(stage.spec.target_kind)
    return model


def _warm_starts(stage: StageContext) -> tuple[PlainTrace, ...]:
    """Return traces of the best trials of similar tasks: those with the same operator, and others fused to it."""
    similar = [
        index
        for index, task in enumerate(stage.spec.tasks)
        if index != stage.file.task and _operator(task) == _operator(stage.task)
    ]
    best = (stage.log(index).fastest(_WARM_STARTS_PER_TASK) for index in similar)
    return tuple(trial.trace for trial in itertools.chain.from_iterable(best))


def _operator(task: TaskSpec) -> tuple[str, ...]:
    """Return the shapes of the first two arguments and of the result, which tell the first operator of a task."""
    shapes = task.shape.split()
    return (*shapes[:2], shapes[-1])


def _knobs(stage: StageContext) -> Knobs | None:
    """Return the knobs of the stage's task; None where TVM's search is to work on a space that they do not cover.

    Raises:
        WorkerError: Knobs do not cover the space, and the job's strategy needs them.
    """
    from autotune.tvm_backend.search.knobs import Knobs

    try:
        return Knobs(stage.program, stage.target)
    except WorkerError:
        # The user need not have chosen the default strategy, so it has to work on every task.
        if stage.spec.strategy not in (_EVOLUTIONARY, strategies.DEFAULT):
            raise
        return None


def _strategy(stage: StageContext, knobs: Knobs, request: Request) -> Callable[[View, int], Strategy]:
    """Return what makes the job's strategy from a view and a seed."""
    if stage.spec.strategy != _EVOLUTIONARY:
        return strategies.get(stage.spec.strategy)
    from autotune.tvm_backend.search.evolutionary import EvolutionarySearch

    return functools.partial(
        EvolutionarySearch, knobs=knobs, trials=request.trials, model=request.model, parameters=_evolution(stage)
    )


def _evolution(stage: StageContext) -> EvolutionParameters:
    """Return the parameters of TVM's search.

    A smaller batch gets a smaller population, because the population determines most of a search's time.
    """
    from autotune.tvm_backend.search.evolutionary import EvolutionParameters

    search = stage.config.search
    enough = max(search.init_unmeasured, _POPULATION_PER_CANDIDATE * stage.count)
    return EvolutionParameters(
        population=min(search.population, enough),
        generations=search.generations,
        init_unmeasured=search.init_unmeasured,
        mutation_probability=search.mutation_probability,
    )


def seed_of(stage: StageContext) -> int:
    """Return a seed that differs between tasks and rounds but not between runs; TVM takes 1 to 2**31 - 1."""
    text = f"{stage.spec.seed}/{stage.task.hash}/{stage.file.round}"
    return zlib.crc32(text.encode()) % (2**31 - 2) + 1
