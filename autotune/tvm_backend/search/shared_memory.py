"""Which schedules are valid: a block may have more shared memory where the launch gives it, and declares none."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.s_tir.meta_schedule.postproc import VerifyGPUCode

from autotune.tvm_backend.cuda.multiprocessors import max_shared_default
from autotune.tvm_backend.search.design_space import tune_context
from autotune.tvm_backend.types import IRModule, Postprocessor, Schedule, Target, Trace

_DECLARED = "shared"
_LIMIT = "max_shared_memory_per_block"


def postprocessors(program: IRModule, target: Target) -> list[Callable[[Schedule], bool]]:
    """Return what MetaSchedule applies to a schedule before it is built. Each says whether the schedule is valid.

    A kernel that declares no shared memory may have as much as a launch may give.
    """
    usual = list(tune_context(program, target).space_generator.postprocs or [])
    if target.kind.name != "cuda":
        return [item.apply for item in usual]
    larger = tvm.target.Target({**target.export(), _LIMIT: max_shared_default(target)})
    wide = next(item for item in tune_context(program, larger).space_generator.postprocs if _verifies(item))
    return [_either(item, wide) if _verifies(item) else item.apply for item in usual]


def _verifies(postprocessor: Postprocessor) -> bool:
    return isinstance(postprocessor, VerifyGPUCode)


def _either(declared: Postprocessor, given: Postprocessor) -> Callable[[Schedule], bool]:
    return lambda schedule: bool((declared if _declares(schedule.trace) else given).apply(schedule))


def _declares(trace: Trace) -> bool:
    return any(str(value) == _DECLARED for item in trace.insts for value in item.attrs)
