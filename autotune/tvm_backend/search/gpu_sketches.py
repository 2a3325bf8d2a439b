"""The sketches of a GPU: products on tensor cores, and sums that are split among blocks.

MetaSchedule's rules for tensor cores wait for each tile of a product, or multiply eight terms at a time, and know
neither bf16 nor TF32. From `sm_80` on our own rule (`pipeline_sketch.py`) stands in their place. Where it applies, a
product has no other sketches but those with a split sum, for which it applies, too. Only one in TF32 keeps those in
fp32.

MetaSchedule also lets threads share each sum, however short. On an H100 a max pooling of 3 by 3 took 122 us so, whose
bytes take 2: each block had one result. Such sketches are left out where a sum is shorter than a warp.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.postproc import PyPostproc
from tvm.s_tir.meta_schedule.schedule_rule import MultiLevelTilingTensorCore

from autotune.tvm_backend.cuda import tensor_pipeline, tf32
from autotune.tvm_backend.cuda.multiprocessors import AMPERE, generation, max_shared_default
from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.cuda.products import ELEMENTS
from autotune.tvm_backend.search.pipeline_sketch import PipelineRule
from autotune.tvm_backend.search.split_reduction import joined, shortest_sum, split_schedules
from autotune.tvm_backend.types import IRModule, SpaceGenerator, Target, TuneContext

QUIET = "autotune.tvm"  # the logger that says nothing
_TF32 = "Tf32"
_WARP = 32
_MIN_THREADS = 4
_TRIES = 4  # what a rule draws differs each time
Generate = Callable[[IRModule], Sequence[Schedule]]


def gpu_generator(usual: SpaceGenerator, program: IRModule, target: Target) -> SpaceGenerator | None:
    """Return a space generator with other sketches than MetaSchedule's own; None where there are none.

    Args:
        usual: MetaSchedule's generator, initialised for the program and the target.
    """
    if target.kind.name != "cuda":
        return None
    heads = split_schedules(program, target)
    pipelines = _pipelines(usual, program, target)
    short = 1 < shortest_sum(program) < _WARP
    if not heads and pipelines is None and not short:
        return None

    def sketches(schedule: Schedule) -> list[Schedule]:
        made = _with_heads(schedule.mod, heads, pipelines) if pipelines else []
        if not made or tf32.is_allowed(program):
            ordinary = _with_heads(schedule.mod, heads, lambda module: _generated(usual, module))
            made += [sketch for sketch in ordinary if not short or not _shares_a_sum(sketch)] or ordinary
        return made or list(usual.generate_design_space(schedule.mod))  # what the rules raise is told

    postprocessors = [*usual.postprocs, *([Launchable()] if pipelines else [])]
    return ms.space_generator.ScheduleFn(sketches, usual.sch_rules, postprocessors, usual.mutator_probs)


def _with_heads(program: IRModule, heads: Sequence[Schedule], generate: Generate) -> list[Schedule]:
    """Return the sketches of a program, and those of the program with its sum split."""
    whole = generate(program)
    return [*whole, *(joined(program, head.trace, tail.trace) for head in heads for tail in generate(head.mod))]


def _shares_a_sum(schedule: Schedule) -> bool:
    """Whether threads share a sum: what MetaSchedule chooses their number from begins with four."""
    drawn = (item for item in schedule.trace.insts if item.kind.name == "SampleCategorical")
    return any(int(item.attrs[0][0]) == _MIN_THREADS for item in drawn)


def _pipelines(usual: SpaceGenerator, program: IRModule, target: Target) -> Generate | None:
    """Return what makes the sketches of our rule; None where the GPU is too old, or there is nothing to multiply."""
    if generation(target) < AMPERE:
        return None
    dtypes = {str(getattr(parameter.ty, "dtype", "")) for parameter in program["main"].params}
    allowed = [item for item in ELEMENTS if item.name != _TF32 or tf32.is_allowed(program)]
    elements = [item.name for item in allowed if item.dtype in dtypes]
    if not elements:
        return None
    others = [rule for rule in usual.sch_rules if not isinstance(rule, MultiLevelTilingTensorCore)]
    generator = ms.space_generator.PostOrderApply(
        sch_rules=[PipelineRule(elements), *others],
        postprocs=list(usual.postprocs),
        mutator_probs=dict(usual.mutator_probs),
    )
    quiet = logging.getLogger(QUIET)
    ms.TuneContext(program, target=target, space_generator=generator, num_threads=1, logger=quiet)  # initialises it

    def generate(module: IRModule) -> list[Schedule]:
        return [schedule for schedule in _generated(generator, module) if PREFIX in str(schedule.trace)]

    return generate


def _generated(generator: SpaceGenerator, program: IRModule) -> list[Schedule]:
    """Return the sketches that a generator makes; none if it fails again and again.

    A rule for tensor cores does not ask whether it applies, to a split sum or to the tiles that it has drawn.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(ScheduleError):
            return list(generator.generate_design_space(program))
    return []


@derived_object
class Launchable(PyPostproc):  # type: ignore[misc]
    """Refuses pipelines whose tiles need more registers or shared memory than there are."""

    def __init__(self, max_shared: int = 0) -> None:
        super().__init__()
        self.max_shared = max_shared

    def _initialize_with_tune_context(self, context: TuneContext) -> None:
        """Read what a block may have."""
        self.max_shared = max_shared_default(context.target)

    def apply(self, schedule: Schedule) -> bool:
        """Say whether it can be launched."""
        return tensor_pipeline.fits(schedule.mod, self.max_shared)

    def clone(self) -> Launchable:
        """Return another one."""
        return Launchable(self.max_shared)
