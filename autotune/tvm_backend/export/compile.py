"""Compile a whole model, with the best schedule of every task or with none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotune import strategies
from autotune.errors import WorkerError
from autotune.storage.formats import Candidate, Trial
from autotune.strategies import samplers
from autotune.tvm_backend.kernels.build import lowering
from autotune.tvm_backend.kernels.prefetch import pipeline
from autotune.tvm_backend.kernels.row_vectors import record_to_compile, without_guarded_vectors
from autotune.tvm_backend.search import propose
from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.prior import prior
from autotune.tvm_backend.search.space import is_too_wide
from autotune.tvm_backend.search.tasks import task_hash
from autotune.tvm_backend.vector_math import intrinsics

_DEFAULT_SEED = 1


def compile_untuned(module: Any, target: Any) -> Any:
    """Compile an imported model with TVM's default pipeline.

    Args:
        module: The imported model.
        target: The target.

    Returns:
        The executable.
    """
    import tvm
    from tvm import relax

    with target, tvm.transform.PassContext(opt_level=3), intrinsics.library_functions():
        return relax.build(module, target=target)


def compile_tuned(prepared: Any, programs: Iterable[Any], best: Mapping[str, Trial], target: Any) -> Any:
    """Compile a prepared model with the best schedules.

    Args:
        prepared: The module that `prepare` returned.
        programs: The tensor programs of its tasks.
        best: The best trial of each task, by the hash of its program. A task without a trial gets the schedule that the
            prior predicts to be the fastest, or any valid schedule if there is no prior.
        target: The target.

    Returns:
        The executable.
    """
    return build_lowered(lower_tuned(prepared, programs, best, target), target)


def build_lowered(lowered: Any, target: Any) -> Any:
    """Compile a module that `lower_tuned` returned, and return the executable."""
    from tvm import relax

    with target, lowering(lowered, target):  # without the target TVM would compile CUDA for the GPU that is here
        return relax.build(lowered, target=target, relax_pipeline=None, tir_pipeline=pipeline(target))


def lower_tuned(
    prepared: Any, programs: Iterable[Any], best: Mapping[str, Trial], target: Any, *, cuda_graph: bool = False
) -> Any:
    """Schedule a prepared model as `compile_tuned` does, and lower it to what `build_lowered` compiles.

    `cuda_graph` is that of `finish`.
    """
    import tvm
    from tvm import relax
    from tvm.s_tir import dlight

    from autotune.tvm_backend.graph.prepare import finish

    database = _database(programs, best, target)
    with target, database, tvm.transform.PassContext(opt_level=3):
        scheduled = relax.transform.MetaScheduleApplyDatabase()(prepared)
        if target.kind.name != "llvm":
            rules = [dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction()]
            rules += [dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()]
            scheduled = dlight.ApplyDefaultSchedule(*rules)(scheduled)
    return finish(scheduled, target, cuda_graph=cuda_graph)


def _database(programs: Iterable[Any], best: Mapping[str, Trial], target: Any) -> Any:
    from tvm.s_tir.meta_schedule.database import MemoryDatabase

    database = MemoryDatabase()
    for program in programs:
        known = best.get(task_hash(program))
        trial = known or _default_trial(program, target)
        if trial is not None:
            workload = database.commit_workload(program)
            record = record_to_compile(trial, workload, target)
            database.commit_tuning_record(record if known else without_guarded_vectors(record, workload, target))
    return database


def _default_trial(program: Any, target: Any) -> Trial | None:
    """Choose a schedule for a program without trials. The choice is the same every time.

    It is the one that the prior predicts to be the fastest, if there is a prior for the kind of target.

    Returns:
        The schedule as a trial; None if TVM finds none, the program is too wide or the target is a GPU.
    """
    if target.kind.name != "llvm" or is_too_wide(program):
        return None  # the default schedules for GPUs are better than a random one
    found = _by_prior(program, target)
    if found is None:
        tiny = EvolutionParameters(population=8, generations=0, init_unmeasured=1, mutation_probability=0.0)
        request = propose.Request((), (), 1, None, _DEFAULT_SEED)
        found = next(iter(propose_without_knobs(program, target, request, tiny).candidates), None)
    return Trial(found.hash, found.trace, found.args, (1.0,), None, "", 0, 0.0) if found else None


def _by_prior(program: Any, target: Any) -> Candidate | None:
    request = propose.Request((), (), 1, prior(target.kind.name), _DEFAULT_SEED)
    try:
        found = propose.propose(
            Knobs(program, target), strategies.get("beam"), samplers.make("greedy", 0.0, True), request
        )
    except WorkerError:  # strategies cannot search this design space
        return None
    return found.candidates[0] if found.candidates else None
