"""The sketches of a GPU: those of MetaSchedule, those that its rules hide, and both with sums split among blocks.

MetaSchedule has two rules for tensor cores. The first, with WMMA, applies wherever the second would, which therefore
never does: kernels that multiply with `mma.sync`, load fragments with `ldmatrix`, and copy ahead with `cp.async` in a
pipeline. So a second generator leaves the first of the two rules out. A third has our rule for bf16 or TF32 in place of
both. A product in bf16 has no other sketches, as one in fp16 has none: some of them TVM cannot compile.

MetaSchedule also lets threads share each sum, however short. On an H100 a max pooling of 3 by 3 took 122 us so, whose
bytes take 2: each block had one result. Such sketches are left out where a sum is shorter than a warp.

`mma.sync` of the second rule has 8 terms. ptxas compiles WMMA to the instructions of 16 terms, and loads its fragments
like `ldmatrix`, but the first rule waits for each tile. So each sketch with WMMA is there again with tiles that are
copied ahead.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from tvm import s_tir
from tvm.ir.transform import Sequential
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.postproc import PyPostproc
from tvm.s_tir.meta_schedule.schedule_rule import MultiLevelTilingTensorCore, ScheduleRule

from autotune.tvm_backend.cuda import tf32, wmma
from autotune.tvm_backend.cuda.multiprocessors import generation
from autotune.tvm_backend.search.split_reduction import joined, shortest_sum, split_schedules
from autotune.tvm_backend.types import IRModule, SpaceGenerator, Target, Trace, TuneContext

QUIET = "autotune.tvm"  # the logger that says nothing
_HALF = "float16"
_PIPELINED = "mma_sync_m16n8k8"
_PERMUTED = "permuted_layout"
_WMMA = "wmma_sync"
_WARP = 32
_MIN_THREADS = 4
_TRIES = 4  # what a rule draws differs each time
_AMPERE = 80  # the first with `cp.async`, and with bf16 on tensor cores
_AHEAD = (1, 3)  # by how many steps. TVM simplifies traces, and drops a sampled number that only an annotation has
Generate = Callable[[IRModule], Sequence[Schedule]]


def gpu_generator(usual: SpaceGenerator, program: IRModule, target: Target) -> SpaceGenerator | None:
    """Return a space generator with more sketches than MetaSchedule's own; None where there are no more.

    Args:
        usual: MetaSchedule's generator, initialised for the program and the target.
    """
    if target.kind.name != "cuda":
        return None
    heads = split_schedules(program, target)
    pipelined = _pipelined(usual, program, target)
    operands = _operands(program, target)
    ours = _with_our_rule(usual, program, target, operands) if operands else None
    more = [generate for generate in (pipelined, ours) if generate]
    short = 1 < shortest_sum(program) < _WARP
    if not heads and not more and not short:
        return None

    def sketches(schedule: Schedule) -> list[Schedule]:
        made = _generated(usual, schedule.mod)
        if short:
            made = [sketch for sketch in made if not _shares_a_sum(sketch)] or made
        for head in heads:
            tails = [*_generated(usual, head.mod), *(ours(head.mod) if ours else ())]
            made += [joined(schedule.mod, head.trace, tail.trace) for tail in tails]
        made += [sketch for generate in more for sketch in generate(schedule.mod)]
        if operands is wmma.BF16:
            made = [sketch for sketch in made if wmma.BF16.mark in str(sketch.trace)] or made
        if not made:  # what the rules raise is told
            return list(usual.generate_design_space(schedule.mod))
        return [*made, *_copying_ahead(schedule.mod, made, target)]

    postprocessors = [*usual.postprocs, *([Compilable()] if pipelined else [])]
    return ms.space_generator.ScheduleFn(sketches, usual.sch_rules, postprocessors, usual.mutator_probs)


def _shares_a_sum(schedule: Schedule) -> bool:
    """Whether threads share a sum: what MetaSchedule chooses their number from begins with four."""
    drawn = (item for item in schedule.trace.insts if item.kind.name == "SampleCategorical")
    return any(int(item.attrs[0][0]) == _MIN_THREADS for item in drawn)


def _copying_ahead(program: IRModule, made: Sequence[Schedule], target: Target) -> list[Schedule]:
    """Return the schedules with WMMA that copy tiles to shared memory while they multiply those before."""
    if generation(target) < _AMPERE:
        return []
    with_wmma = [schedule.trace for schedule in made if _WMMA in str(schedule.trace)]
    return [_ahead(program, trace, steps) for trace in with_wmma for steps in _AHEAD]


def _ahead(program: IRModule, trace: Trace, steps: int) -> Schedule:
    """Return a schedule whose loop over the tiles of a product copies each tile some steps before it is multiplied."""
    schedule = Schedule(program)
    trace.apply_to_schedule(schedule, False)
    (copy,) = wmma.copies_to_shared(schedule)[0].outputs
    placed = (item for item in schedule.trace.insts if item.kind.name == "ComputeAt")
    loop = next(item.inputs[1] for item in placed if item.inputs[0].same_as(copy))
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, steps])
    schedule.annotate(loop, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(loop, "software_pipeline_async_stages", [0])
    return schedule


def _pipelined(usual: SpaceGenerator, program: IRModule, target: Target) -> Generate | None:
    """Return what makes the sketches of the second rule for tensor cores; None where there is none, or no fp16."""
    rules = list(usual.sch_rules)
    for_tensor_cores = [rule for rule in rules if isinstance(rule, MultiLevelTilingTensorCore)]
    if len(for_tensor_cores) < 2 or not _reads(program, _HALF):
        return None
    others = [rule for rule in rules if not rule.same_as(for_tensor_cores[0])]
    return _with_rules(others, _PIPELINED, usual, program, target)


def _with_our_rule(
    usual: SpaceGenerator, program: IRModule, target: Target, operands: wmma.Operands
) -> Generate | None:
    """Return what makes the sketches in bf16 or TF32; None where the GPU has no rule for tensor cores."""
    places = [place for place, rule in enumerate(usual.sch_rules) if isinstance(rule, MultiLevelTilingTensorCore)]
    if not places:
        return None
    others = [rule for place, rule in enumerate(usual.sch_rules) if place not in places]
    rules = [*others[: places[0]], wmma.rule(operands), *others[places[0] :]]
    generate = _with_rules(rules, operands.mark, usual, program, target)

    def spread(module: IRModule) -> Sequence[Schedule]:
        made = generate(module)
        for schedule in made:
            wmma.spread_over_banks(schedule, operands)
        return made

    return spread


def _operands(program: IRModule, target: Target) -> wmma.Operands | None:
    """Return which of our operands the products of a program may have; None where it is neither."""
    if tf32.is_allowed(program):
        return wmma.TF32
    in_bfloat16 = generation(target) >= _AMPERE and _reads(program, wmma.BF16.element)
    return wmma.BF16 if in_bfloat16 else None


def _with_rules(
    rules: Sequence[ScheduleRule], mark: str, usual: SpaceGenerator, program: IRModule, target: Target
) -> Generate:
    """Return what makes sketches by other rules than the usual ones, and keeps those whose trace has a mark."""
    generator = ms.space_generator.PostOrderApply(
        sch_rules=list(rules), postprocs=list(usual.postprocs), mutator_probs=dict(usual.mutator_probs)
    )
    quiet = logging.getLogger(QUIET)
    ms.TuneContext(program, target=target, space_generator=generator, num_threads=1, logger=quiet)  # initialises it

    def generate(module: IRModule) -> list[Schedule]:
        return [schedule for schedule in _generated(generator, module) if mark in str(schedule.trace)]

    return generate


def _generated(generator: SpaceGenerator, program: IRModule) -> list[Schedule]:
    """Return the sketches that a generator makes; none if it fails again and again.

    A rule for tensor cores does not ask whether it applies, to a split sum or to the tiles that it has drawn.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(ScheduleError):
            return list(generator.generate_design_space(program))
    return []


def _reads(program: IRModule, dtype: str) -> bool:
    return any(str(getattr(parameter.ty, "dtype", "")) == dtype for parameter in program["main"].params)


@derived_object
class Compilable(PyPostproc):  # type: ignore[misc]
    """Refuses pipelines for tensor cores that TVM fails to compile later.

    Their tiles in shared memory must be wide enough to be permuted, as `ldmatrix` needs it, and what is copied ahead
    must have a step before which it is copied.
    """

    def _initialize_with_tune_context(self, context: TuneContext) -> None:
        """Needs nothing."""

    def apply(self, schedule: Schedule) -> bool:
        """Say whether it can be compiled. That takes no time where there is no such pipeline."""
        if _PERMUTED not in str(schedule.trace):
            return True
        if _steps(schedule) == 1:
            return False
        try:
            _TO_PERMUTED(schedule.mod)
        except Exception:  # of the kind that TVM's check raises
            return False
        return True

    def clone(self) -> Compilable:
        """Return another one."""
        return Compilable()


def _steps(schedule: Schedule) -> int:
    """How many steps the outermost loop over the terms has: the only tile that is not partitioned."""
    trace = schedule.trace
    tiles = (trace.get_decision(item) for item in trace.insts if str(item.kind.name) == "SamplePerfectTile")
    return min(int(next(iter(tile))) for tile in tiles)


_TO_PERMUTED = Sequential(  # the beginning of TVM's `default_s_tir_pipeline`
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerAutoCopy(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.InjectPermutedLayout(),
    ]
)
