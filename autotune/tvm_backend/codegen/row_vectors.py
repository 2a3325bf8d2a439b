"""Vectors that do not cross rows: how the vector loops of a schedule are compiled.

MetaSchedule fuses the innermost loops of a block to one vector loop of at most 64 elements. If these are several rows,
such as four pixels of sixteen channels, an operand that is the same for a whole row becomes a gather of single
elements. LLVM takes seconds to compile that, and seldom finds the vectors again. So the loop is split before it is
compiled, into vectors of one row each. The result is the same bit for bit.

Elementwise operators have all their loops fused to one, of which a vector loop is the inner part. It is split where a
tensor does not lie side by side over all of it, as behind a transpose, into vectors over which all tensors do.

Where such a loop does not end with the tensor, each of its elements is computed under a condition, one after the other.
LLVM makes better vectors of a plain loop over a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tvm.s_tir import Schedule, ScheduleError, meta_schedule
from tvm.tirx import FloorMod, ForKind, IntImm

from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.codegen.index_values import block_in
from autotune.tvm_backend.codegen.vector_runs import run_of
from autotune.tvm_backend.isa.available import vector_registers
from autotune.tvm_backend.search.design_space import tune_context, tuning_record
from autotune.tvm_backend.types import (
    BlockRV,
    IRModule,
    Loop,
    LoopRV,
    PlainTrace,
    Postprocessor,
    PrimExpr,
    Target,
    Trace,
    TuningRecord,
    Workload,
)
from autotune.tvm_backend.untrusted_programs import check_calls
from autotune.tvm_backend.untrusted_traces import WHOLE_VECTORS


def record_to_compile(item: Candidate | Trial, workload: Workload, target: Target) -> TuningRecord:
    """Make TVM's tuning record of a candidate or a trial as `tuning_record` does, with vectors of one row each.

    Raises:
        DamagedFile: Its trace does more than schedule, or the schedule makes the program call something.
    """
    return _to_compile(item, workload, target)[0]


def module_to_compile(item: Candidate | Trial, workload: Workload, target: Target) -> IRModule:
    """Return the scheduled program of the record that `record_to_compile` makes, without a replay of that.

    Raises:
        DamagedFile: As there.
    """
    return _to_compile(item, workload, target)[1]


def _to_compile(item: Candidate | Trial, workload: Workload, target: Target) -> tuple[TuningRecord, IRModule]:
    record = tuning_record(item, workload, target)
    schedule = None
    if str(target.kind) == "llvm" and _may_cross_rows(item.trace):
        schedule = _postprocessed(record.trace, workload.mod, target)
    scheduled = schedule.mod if schedule is not None else record.as_measure_candidate().sch.mod
    check_calls(scheduled, workload.mod, item.trace)
    if schedule is not None:
        record = type(record)(schedule.trace, workload, record.run_secs, target, None)
    return record, scheduled


def without_guarded_vectors(record: TuningRecord, workload: Workload, target: Target) -> TuningRecord:
    """Return a tuning record; without its vector loops if all of them compute elements under a condition.

    Args:
        record: What `record_to_compile` returned, for a CPU.
    """
    scheduled = record.as_measure_candidate().sch
    loops = {loop for block in _blocks(scheduled, _root(scheduled)) for loop in _vectors(scheduled, block)}
    if not loops or not all(map(_is_guarded, loops)):
        return record
    schedule = _postprocessed(record.trace, workload.mod, target, vectorize=False)
    return record if schedule is None else type(record)(schedule.trace, workload, record.run_secs, target, None)


def _vectors(schedule: Schedule, block: BlockRV) -> list[Loop]:
    """Return the vector loops around a block, but for those that TVM cuts where a condition begins to hold."""
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    return [] if any(WHOLE_VECTORS in loop.annotations for loop in loops) else list(filter(_is_vectorized, loops))


def _is_guarded(loop: Loop) -> bool:
    """Whether the block in a loop has a condition."""
    return not isinstance(block_in(loop).predicate, IntImm)


def _may_cross_rows(trace: PlainTrace) -> bool:
    """Whether a vector loop was fused of several, is a part of one that was, or is not a tile's."""
    steps = trace[0]
    tiled = any(kind == "SamplePerfectTile" for kind, *_ in steps)
    fused = {name for kind, loops, _, names in steps if kind == "Fuse" and len(loops) > 1 for name in names}
    fused |= {name for kind, loops, _, names in steps if kind == "Split" and loops[0] in fused for name in names}
    return any(kind == "Vectorize" and (not tiled or loops[0] in fused) for kind, loops, _, _ in steps)


def _postprocessed(trace: Trace, program: IRModule, target: Target, *, vectorize: bool = True) -> Schedule | None:
    """Postprocess a schedule anew, and split its vector loops in between; None if it cannot be postprocessed.

    Without `vectorize` it gets no vector loops. They are split before the initialization of reductions is moved into
    blocks of its own. Later TVM would refuse it.
    """
    schedule = Schedule(program)
    trace.apply_to_schedule(schedule, remove_postproc=True)
    if not vectorize:
        schedule.unannotate(_root(schedule), "meta_schedule.vectorize")
    schedule.enter_postproc()
    for step in _steps(program, target):
        if not step.apply(schedule):
            return None
        if isinstance(step, meta_schedule.postproc.RewriteParallelVectorizeUnroll):
            schedule = _split(schedule, vector_registers(target)[0])
    return schedule


@lru_cache(maxsize=1)
def _steps(program: IRModule, target: Target) -> list[Postprocessor]:
    """Return MetaSchedule's postprocessors for a program, as the candidates of a round have the same."""
    return list(tune_context(program, target).space_generator.postprocs)


def _split(schedule: Schedule, lanes: int) -> Schedule:
    """Return a schedule in which every vector loop over rows of half a vector or more is a loop over vectors."""
    for block in list(_blocks(schedule, _root(schedule))):
        loop = next((loop for loop in schedule.get_loops(block)[::-1] if _is_vectorized(schedule.get(loop))), None)
        row = (_row(schedule.get(loop)) or _run(schedule, block, loop, lanes)) if loop is not None else 0
        if not lanes // 2 <= row <= lanes:
            continue
        before = schedule.copy()
        try:
            outer, inner = schedule.split(loop, [None, row])
            schedule.unroll(outer)
            schedule.vectorize(inner)
        except ScheduleError:
            schedule = before
    return schedule


def _run(schedule: Schedule, block: BlockRV, loop: LoopRV, lanes: int) -> int:
    """Return the iterations of a vector loop, at most a vector, over which tensors lie side by side; 0 if all do."""
    run = run_of(schedule, block, loop)
    if run == int(schedule.get(loop).extent):
        return 0
    return next((width for width in range(min(run, lanes), 1, -1) if run % width == 0), 0)


def _root(schedule: Schedule) -> BlockRV:
    """Return the outermost block, which kernels that TVM writes as a whole (`ScatterElements`) call by another name."""
    return schedule.get_sblock(schedule.mod["main"].body.block.name_hint)


def _blocks(schedule: Schedule, parent: BlockRV) -> Iterator[BlockRV]:
    for block in schedule.get_child_blocks(parent):
        yield block
        yield from _blocks(schedule, block)


def _is_vectorized(loop: Loop) -> bool:
    return int(loop.kind) == int(ForKind.VECTORIZED)


def _row(loop: Loop) -> int:
    """Return the extent of the innermost of the loops that were fused to a loop; 0 if nothing was fused."""
    values = getattr(block_in(loop), "iter_values", ())  # a loop may be around several blocks
    moduli = (_moduli(value, loop.loop_var) for value in values)
    return min((modulus for of_index in moduli for modulus in of_index), default=0)


def _moduli(expr: PrimExpr, variable: PrimExpr) -> Iterator[int]:
    """Yield each constant that an expression takes a variable modulo."""
    if isinstance(expr, FloorMod) and expr.a.same_as(variable) and isinstance(expr.b, IntImm):
        yield int(expr.b)
    for name in ("a", "b"):
        if (part := getattr(expr, name, None)) is not None:
            yield from _moduli(part, variable)
