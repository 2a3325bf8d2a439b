"""Search: propose a batch of candidates that were never measured."""

from __future__ import annotations

import zlib
from typing import Any

from autotune.stages import simulated, train
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Trial

_POPULATION_PER_CANDIDATE = 6


def run(stage: Stage) -> dict[str, Any]:
    """Publish the build stage with up to `stage.count` candidates.

    The cost model serves all tasks of the job, so that a task's first batch, too, is more than a random
    sample once other tasks have trials.

    Returns:
        `proposed`, how many there are. With none the round stays where it is: the space is exhausted,
        and the daemon, told so, will not ask again.
    """
    # In this order: a round that ends in between is found in the log, and one that has not, in its stage file.
    pending = stage.on_its_way() | set(stage.quarantine().failures(stage.spec.target_kind))
    trials = stage.log().trials()
    candidates = simulated.propose(stage, trials, pending) if stage.simulated else _propose(stage, trials, pending)
    if candidates:
        stage.advance("build", candidates)
    return {"proposed": len(candidates)}


def _propose(stage: Stage, trials: list[Trial], pending: set[str]) -> list[Candidate]:
    from autotune.tvm_backend.cost_model import CostModel
    from autotune.tvm_backend.evolve import propose

    if trials and not stage.paths.cost_model.exists():
        train.update_model(stage)
    model = CostModel.load(stage.paths.cost_model)
    return propose(stage.program, stage.target, trials, stage.count, model, _evolution(stage), _seed(stage), pending)


def _evolution(stage: Stage) -> Any:
    """The settings, with a smaller population for a smaller batch: it is the larger part of a search's time."""
    from autotune.tvm_backend.evolve import Evolution

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
