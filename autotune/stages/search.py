"""Search: propose a batch of candidates that were never measured."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Sequence
from typing import Any

from autotune import strategies
from autotune.errors import WorkerError
from autotune.stages import simulated, train
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, TaskSpec, Trial

_POPULATION_PER_CANDIDATE = 6
_HINTS = 2  # of each similar task


def run(stage: Stage) -> dict[str, Any]:
    """Publish the build stage with up to `stage.count` candidates of the job's strategy.

    The cost model serves all tasks of the job, so that a task's first batch, too, is more than a random
    sample once other tasks have trials.

    Returns:
        `proposed`, how many there are, and `steps` of the search's inner loop; of a strategy that works on knobs
        also how many configurations were `replayed`, and how many of these were `invalid` or `repeated`. With none
        proposed the round stays where it is: the space is exhausted, and the daemon, told so, will not ask again.
    """
    # In this order: a round that ends in between is found in the log, and one that has not, in its stage file.
    pending = stage.pending()
    barred = stage.quarantine().failures(stage.spec.target_kind)
    trials = stage.log().trials()
    if stage.simulated:
        known = {item.hash for item in pending} | set(barred)
        candidates, told = simulated.propose(stage, trials, known), dict[str, int]()
    else:
        candidates, told = _propose(stage, trials, pending, barred)
    if candidates:
        stage.advance("build", candidates)
    return {"proposed": len(candidates), **told}


def _propose(
    stage: Stage, trials: Sequence[Trial], pending: Sequence[Candidate], barred: Collection[str]
) -> tuple[list[Candidate], dict[str, int]]:
    """Candidates, and what the search tells of itself; `barred` are hashes that nobody may propose."""
    from autotune.tvm_backend.search.cost_model import CostModel
    from autotune.tvm_backend.search.evolve import propose
    from autotune.tvm_backend.search.features import WIDTH
    from autotune.tvm_backend.search.prior import prior
    from autotune.tvm_backend.search.propose import Request

    if stage.attempt:
        train.forget_model(stage.paths)  # the last attempt may have died of reading it
    intact = train.is_intact(stage.paths)
    if trials and not intact:
        train.update_model(stage)
        intact = train.is_intact(stage.paths)
    model = CostModel.load(stage.paths.cost_model, WIDTH) if intact else None
    if model is None and stage.config.search.prior:
        model = prior(stage.spec.target_kind)
    knobs = _knobs(stage)
    if knobs is not None:
        request = Request(trials, pending, stage.count, model, _seed(stage), frozenset(barred), _hints(stage))
        return _on_knobs(stage, knobs, request)
    evolution, known = _evolution(stage), {item.hash for item in pending} | set(barred)
    found = propose(stage.program, stage.target, trials, stage.count, model, evolution, _seed(stage), known)
    return found, {"steps": evolution.generations if model else 0}


def _hints(stage: Stage) -> tuple[Any, ...]:
    """Traces of the best trials of the job's similar tasks: the same operator, with something else fused to it."""
    similar = [
        index
        for index, task in enumerate(stage.spec.tasks)
        if index != stage.file.task and _operator(task) == _operator(stage.task)
    ]
    timed = ([trial for trial in stage.log(index).trials() if trial.median_us] for index in similar)
    best = (sorted(trials, key=lambda trial: trial.median_us or 0.0)[:_HINTS] for trials in timed)
    return tuple(trial.trace for trial in itertools.chain.from_iterable(best))


def _operator(task: TaskSpec) -> tuple[str, ...]:
    """The shapes of what the first operator of a task reads, as far as two arguments go, and of its result."""
    shapes = task.shape.split()
    return (*shapes[:2], shapes[-1])


def _knobs(stage: Stage) -> Any:
    """The knobs that the job's strategy turns; None where TVM's own search is to be used as it is."""
    from autotune.tvm_backend.search.knobs import Knobs

    if (stage.spec.strategy, stage.spec.sampler) == ("evolutionary", "greedy"):
        return None
    try:
        return Knobs(stage.program, stage.target)
    except WorkerError:
        if stage.spec.strategy != strategies.DEFAULT:
            raise
        return None  # nobody has chosen the default, and it has to do for every task


def _on_knobs(stage: Stage, knobs: Any, request: Any) -> tuple[list[Candidate], dict[str, int]]:
    from autotune.strategies import samplers
    from autotune.tvm_backend.search.evolve_knobs import evolutionary
    from autotune.tvm_backend.search.propose import propose

    if stage.spec.strategy == "evolutionary":
        strategy: Any = evolutionary(knobs, request.trials, request.model, _evolution(stage))
    else:
        strategy = strategies.get(stage.spec.strategy)
    search = stage.config.search
    sampler = samplers.make(stage.spec.sampler, search.epsilon, search.synthesis)
    found = propose(knobs, strategy, sampler, request)
    told = {"steps": found.steps, "replayed": found.replayed, "invalid": found.invalid, "repeated": found.repeated}
    return found.candidates, told


def _evolution(stage: Stage) -> Any:
    """The settings, with a smaller population for a smaller batch: it is the larger part of a search's time."""
    from autotune.tvm_backend.search.evolve import Evolution

    search = stage.config.search
    enough = max(search.init_unmeasured, _POPULATION_PER_CANDIDATE * stage.count)
    return Evolution(
        population=min(search.population, enough),
        generations=search.generations,
        init_unmeasured=search.init_unmeasured,
        mutation_probability=search.mutation_probability,
        epsilon=search.epsilon,
    )


def _seed(stage: Stage) -> int:
    """A seed that differs between tasks and rounds but not between runs; TVM takes 1 to 2**31 - 1."""
    text = f"{stage.spec.seed}/{stage.task.hash}/{stage.file.round}"
    return zlib.crc32(text.encode()) % (2**31 - 2) + 1
