"""The design space of a task: its sketches, and schedules that are rebuilt from recorded traces."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

from autotune.errors import DamagedFile
from autotune.storage.formats import Candidate, Trial
from autotune.tvm_backend.intrinsics.tile_kernels import register_named
from autotune.tvm_backend.search import schedule_rules  # noqa: F401  some blocks name its schedule rules
from autotune.tvm_backend.search.gpu_sketches import QUIET, gpu_generator
from autotune.tvm_backend.types import (
    Decision,
    Instruction,
    IRModule,
    MeasureCandidate,
    PlainInstruction,
    PlainTrace,
    Target,
    Trace,
    TuneContext,
)
from autotune.tvm_backend.untrusted_traces import check_trace

Tile = tuple[int, ...]

PARTITIONED = "SamplePartitionedTile"
_ROOT = "root"
_MAX_ARGUMENTS = 64
_QUIET = logging.getLogger(QUIET)
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_QUIET.setLevel(logging.CRITICAL)


def tune_context(
    program: IRModule, target: Target, *, strategy: ms.SearchStrategy | None = None, seed: int = 1
) -> TuneContext:
    """Make a TuneContext with MetaSchedule's default rules for the target, on one thread, so that results are repeated.

    It takes about 3 ms.

    Args:
        strategy: TVM's search strategy, where the context is to search.
        seed: Of the random state.
    """
    make = partial(
        ms.TuneContext,
        program,
        target=target,
        search_strategy=strategy,
        rand_state=seed,
        num_threads=1,
        logger=_QUIET,
    )
    context = make(space_generator="post-order-apply")
    generator = gpu_generator(context.space_generator, program, target)
    return context if generator is None else make(space_generator=generator)


def is_too_wide(program: IRModule) -> bool:
    """Return whether a kernel has more than 64 arguments, as one that joins hundreds of tensors.

    MetaSchedule needs minutes to find schedules for it, and to apply one.
    """
    return len(program["main"].params) > _MAX_ARGUMENTS


def design_space(program: IRModule, target: Target) -> list[Schedule]:
    """Return the sketches of a program: schedules whose sampling instructions are the knobs.

    There are none where a rule of MetaSchedule fails, as some do on reductions over an axis of extent 1. There are
    none either for a program that `is_too_wide`.
    """
    if is_too_wide(program):
        return []
    try:
        return list(tune_context(program, target).generate_design_space())
    except ValueError:  # a check inside TVM
        return []


def tuning_record(item: Candidate | Trial, workload: Workload, target: Target) -> TuningRecord:
    """Make TVM's tuning record of a candidate or a trial. The time of a failed trial is 1e10 seconds, as in TVM.

    Raises:
        DamagedFile: Its trace does more than schedule.
    """
    try:
        check_trace(item.trace)
    except ValueError as error:
        raise DamagedFile(f"the trace of candidate {item.hash} is refused: {error}") from error
    register_named(item.trace)
    seconds: list[float] = []
    if isinstance(item, Trial):
        seconds = [time / 1e6 for time in item.times_us] or [1e10]
    try:
        trace = TuningRecord.from_json([item.trace, seconds, None, item.args], workload).trace
    except ScheduleError:  # it may come from a model whose blocks have other names
        named = with_names_of(item.trace, workload.mod)
        trace = TuningRecord.from_json([named, seconds, None, item.args], workload).trace
    return TuningRecord(trace, workload, seconds or None, target, None)


def with_names_of(trace: PlainTrace, program: IRModule) -> PlainTrace:
    """Return a trace in JSON form with the names of a program's blocks in place of those that the program lacks.

    TVM names some blocks after variables of the model, such as `lv193_red` for a sum over `lv193`. Equal programs share
    their trials, whatever their blocks are called, but a trace finds its blocks by name.

    A name that is missing stands for the block that no instruction names and whose name ends alike. Several such blocks
    are taken in the order of the numbers in their names. A trace that cannot be adapted is returned as it is.

    Args:
        trace: The trace. It is not changed.
        program: The tensor program of the task, not scheduled.
    """
    wanted = _named(trace)
    present = _block_names(program)
    missing = sorted(_lacking(trace, present), key=_by_number)
    unused = sorted((name for name in present if name not in wanted), key=_by_number)
    renamed: dict[str, str] = {}
    for name in missing:
        replacement = next((other for other in unused if _ending(other) == _ending(name)), None)
        if replacement is None:
            return trace
        unused.remove(replacement)
        renamed[name] = replacement
    return [[_renamed(item, renamed) for item in trace[0]], *trace[1:]]


def _block_names(program: IRModule) -> list[str]:
    schedule = Schedule(program)
    blocks = schedule.get_child_blocks(schedule.get_sblock(_ROOT))
    return [str(schedule.get(block).name_hint) for block in blocks]


def _named(trace: PlainTrace) -> list[str]:
    return [str(item[2][0]) for item in trace[0] if item[0] == "GetSBlock"]


def _lacking(trace: PlainTrace, present: Sequence[str]) -> list[str]:
    """The names of blocks that the program should have and lacks. Scheduling makes more blocks before the end."""
    begun = next((index for index, item in enumerate(trace[0]) if item[0] == "EnterPostproc"), len(trace[0]))
    names = dict.fromkeys(_named([trace[0][:begun]]))
    return [name for name in names if name != _ROOT and name not in present]


def _by_number(name: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", name))


def _ending(name: str) -> str:
    return name.partition("_")[2]


def _renamed(item: PlainInstruction, renamed: dict[str, str]) -> PlainInstruction:
    if item[0] != "GetSBlock":
        return item
    kind, inputs, (name, *rest), outputs = item
    for old, new in renamed.items():
        if name == old or name.startswith(f"{old}_"):  # the latter is a part of the block, split off by the schedule
            return [kind, inputs, [new + name[len(old) :], *rest], outputs]
    return item


def replay(items: Sequence[Candidate | Trial], program: IRModule, target: Target) -> list[MeasureCandidate]:
    """Rebuild TVM's measure candidates (schedule and argument shapes) from traces. It takes about 1.4 ms each."""
    workload = Workload(program)
    return [tuning_record(item, workload, target).as_measure_candidate() for item in items]


def plain_trace(trace: Trace) -> PlainTrace:
    """Return a trace without postprocessing in TVM's JSON form, made of Python's containers and numbers only."""
    return _plain(trace.as_json(True))


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "__len__"):
        return [_plain(item) for item in value]
    return _plain(value.value)


def before_postprocessing(trace: PlainTrace) -> list[PlainInstruction]:
    """Return the instructions of a trace in JSON form, up to where its postprocessing begins."""
    return list(itertools.takewhile(lambda item: item[0] != "EnterPostproc", trace[0]))


def sampled(trace: PlainTrace) -> list[Decision]:
    """Return the decisions of the sampling instructions of a trace in JSON form, in order.

    Raises:
        IndexError, KeyError, TypeError, ValueError: It is not a trace, or one of its decisions is missing.
    """
    decided = {int(position): decision for position, decision in trace[1]}
    return [decided[index] for index, item in enumerate(trace[0]) if str(item[0]).startswith("Sample")]


def to_candidate(measure_candidate: MeasureCandidate, hash: str) -> Candidate:
    """Make a candidate of a schedule that the search found.

    Args:
        measure_candidate: TVM's, with the schedule and the argument shapes.
        hash: Of the scheduled program.
    """
    # A tuning record keeps index maps, as in the schedules for tensor cores, as objects. A trace writes them out.
    trace = measure_candidate.sch.trace
    return Candidate(hash, _plain(trace.as_json()), plain_args(measure_candidate.args_info))


def plain_args(args: Iterable[ArgInfo]) -> list[Any]:
    """Return arguments' types and shapes as they are in a candidate."""
    return [_plain(item.as_json()) for item in args]


def tiles(trace: Trace, instruction: Instruction) -> tuple[Tile, ...]:
    """Return every tile that TVM can draw for an instruction that samples one, the smallest innermost factor first.

    The product of the innermost factors of a SamplePartitionedTile is fixed. A loop whose extent is not known is not
    tiled: the decision in the trace is its only value.
    """
    decision = tuple(int(factor) for factor in trace.get_decision(instruction))
    extent = math.prod(decision)
    if extent < 1:
        return (decision,)
    if str(instruction.kind.name) == PARTITIONED:
        count, place, inside = (int(attribute) for attribute in instruction.attrs)
        outer = factorisations(extent // inside, place, -1)
        inner = factorisations(inside, count - place, -1)
        return tuple(sorted((one + other for one in outer for other in inner), key=lambda tile: tile[::-1]))
    factors, innermost = (int(attribute) for attribute in instruction.attrs)
    return tuple(sorted(factorisations(extent, factors, innermost), key=lambda tile: tile[::-1]))


@lru_cache(maxsize=4096)
def factorisations(extent: int, count: int, innermost: int) -> tuple[Tile, ...]:
    """Return all ordered ways to write `extent` as a product of `count` factors.

    Args:
        innermost: Largest value of the last factor. -1 means no limit, as TVM's rules say it with
            `max_innermost_factor=None`.
    """
    if count == 1:
        return ((extent,),) if innermost < 0 or extent <= innermost else ()
    last = (factor for factor in _divisors(extent) if innermost < 0 or factor <= innermost)
    return tuple((*rest, factor) for factor in last for rest in factorisations(extent // factor, count - 1, -1))


def _divisors(number: int) -> list[int]:
    """Return the divisors, in ascending order."""
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    large = [number // factor for factor in reversed(small) if factor * factor != number]
    return small + large
