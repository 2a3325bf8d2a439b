"""TVM's evolutionary search, driven one batch at a time and rebuilt from the tuning log every time.

TVM keeps what was measured in the memory of its search object. Here nothing survives a batch: the parents
and the set of known candidates come from the log, and a batch depends on the log, the model and the seed only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.features import Features
from autotune.tvm_backend.search.space import to_candidate, tune_context, tuning_record
from autotune.tvm_backend.search.tasks import program_hash

_PARENTS = 0.2


@dataclass(frozen=True)
class Evolution:
    """Parameters of the search. `epsilon` is the share of a batch that is picked at random."""

    population: int
    generations: int
    init_unmeasured: int
    mutation_probability: float
    epsilon: float


def propose(
    program: Any,
    target: Any,
    trials: Sequence[Trial],
    count: int,
    model: CostModel | None,
    evolution: Evolution,
    seed: int,
    pending: Collection[str] = (),
) -> list[Candidate]:
    """Up to `count` new candidates, best predicted first; none of them is in `trials` or has a hash in `pending`.

    Fewer come back where the space has no more that the search finds; none means that it is exhausted.
    Without a model the batch is a random sample. One thread: the same arguments give the same batch.
    """
    known = {trial.hash for trial in trials} | set(pending)
    ranked = generate(program, target, trials, count + len(known), model, evolution, seed)
    fresh = {program_hash(item.sch.mod): item for item in ranked}
    picked = _pick([hash for hash in fresh if hash not in known], count, evolution.epsilon, seed)
    return [to_candidate(fresh[hash], program, hash) for hash in picked]


def generate(
    program: Any,
    target: Any,
    trials: Sequence[Trial],
    wanted: int,
    model: CostModel | None,
    evolution: Evolution,
    seed: int,
) -> list[Any]:
    """Distinct schedules from one run of the search, best predicted first; parents may be among them."""
    from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

    strategy = EvolutionarySearch(
        population_size=evolution.population,
        init_measured_ratio=_PARENTS,
        init_min_unmeasured=evolution.init_unmeasured,
        genetic_num_iters=evolution.generations if model else 0,
        genetic_mutate_prob=evolution.mutation_probability,
        eps_greedy=0.0,
    )
    context = tune_context(program, target, strategy=strategy, seed=seed)
    batch = min(wanted, evolution.population * 2)
    database = _database(program, target, trials, int(evolution.population * _PARENTS))
    context.pre_tuning(batch, batch, None, database, _scorer(model, Features(program, target), seed))
    found = context.generate_measure_candidates()
    context.post_tuning()
    return list(found or [])


def _database(program: Any, target: Any, trials: Sequence[Trial], parents: int) -> Any:
    from tvm.s_tir.meta_schedule.database import MemoryDatabase

    database = MemoryDatabase()
    workload = database.commit_workload(program)
    timed = sorted((trial for trial in trials if trial.median_us), key=lambda trial: trial.median_us or 0.0)
    for trial in timed[:parents]:
        database.commit_tuning_record(tuning_record(trial, workload, target))
    return database


def _scorer(model: CostModel | None, features: Features, seed: int) -> Any:
    """TVM's cost model interface over ours. Without a model: seeded random scores."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel

    noise = np.random.default_rng(seed)

    @derived_object
    class Scorer(PyCostModel):  # type: ignore[misc]
        def predict(self, context: Any, candidates: Any) -> Any:
            if model is None:
                return noise.random(len(candidates))
            return model.score(features.of_candidates(candidates))

    return Scorer()


def _pick(ranked: Sequence[str], count: int, epsilon: float, seed: int) -> list[str]:
    """The best of the ranking, but a share `epsilon` of the batch drawn from the rest."""
    if len(ranked) <= count:
        return list(ranked)
    explored = round(count * epsilon)
    best, rest = list(ranked[: count - explored]), list(ranked[count - explored :])
    drawn = np.random.default_rng(seed).choice(len(rest), size=explored, replace=False)
    return best + [rest[index] for index in sorted(drawn)]
