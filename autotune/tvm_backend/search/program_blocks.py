"""The blocks of a tensor program, and what default schedules ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import TensorRegion

from autotune.tvm_backend.types import BlockRV, Call, PrimExpr, Schedule

REDUCED = 2  # the type of an axis that is reduced, in TVM
_OWN_RULES = ("meta_schedule.pool_", "meta_schedule.adaptive_pool")  # rules of MetaSchedule that are no better
CONDITION = "prim.if_then_else"
_CHEAP = (CONDITION, "prim.likely", "tirx.bitwise", "tirx.shift", "tirx.fabs")


@dataclass(frozen=True)
class ProgramBlock:
    """A block of a program, as it is before it is scheduled.

    Attributes:
        reduces: Whether it is a reduction.
        spatial: Its other axes.
    """

    ref: BlockRV
    block: tvm.s_tir.SBlock
    reduces: bool
    spatial: tuple[tirx.Var, ...]


def blocks_of(schedule: Schedule) -> list[ProgramBlock]:
    """The blocks of a program in order; none if one is not a plain nest of loops."""
    nests = []
    for ref in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(ref)
        if schedule.get_child_blocks(ref) or not {int(axis.iter_type) for axis in block.iter_vars} <= {0, REDUCED}:
            return []
        nests.append(ProgramBlock(ref, block, bool(_axes(block, REDUCED)), tuple(_axes(block, 0))))
    return nests


def _axes(block: tvm.s_tir.SBlock, kind: int) -> list[tirx.Var]:
    return [axis.var for axis in block.iter_vars if int(axis.iter_type) == kind]


def has_one_end(blocks: Sequence[ProgramBlock]) -> bool:
    """Whether all that is computed is for the last block."""
    read = [region.source for item in blocks for region in reads_of(item)]
    return all(
        any(region.source.same_as(other) for region in item.block.writes for other in read) for item in blocks[:-1]
    )


def is_foreign(item: ProgramBlock) -> bool:
    """Whether a block has a rule of its own, or is written for tensor instructions."""
    rule = str(item.block.annotations.get("schedule_rule", ""))
    return bool(rule) and not rule.startswith(_OWN_RULES)


def is_product(item: ProgramBlock) -> bool:
    """Whether a reduction reads tensors again and again, as products do: MetaSchedule's tiles are for those."""
    reads = reads_of(item)
    if not item.reduces or len(reads) < 2:
        return False
    return any(not all(uses(region, axis) for axis in item.spatial) for region in reads)


def reads_of(item: ProgramBlock) -> list[TensorRegion]:
    """What a block reads, but for what it writes."""
    written = [region.source for region in item.block.writes]
    return [region for region in item.block.reads if not any(region.source.same_as(other) for other in written)]


def uses(region: TensorRegion, axis: tirx.Var) -> bool:
    """Whether where a region begins depends on an axis."""
    return any(has(bounds.min, axis) for bounds in region.region)


def has(expression: PrimExpr, variable: tirx.Var) -> bool:
    """Whether a variable is in an expression."""
    seen: list[tirx.Var] = []
    tvm_ffi.structural_walk(expression, ((tirx.Var, seen.append),))
    return any(item.same_as(variable) for item in seen)


def is_over_windows(block: tvm.s_tir.SBlock) -> bool:
    """Whether a block is a reduction over windows, which overlap."""
    reduced = _axes(block, REDUCED)
    own = _axes(block, 0)
    bounds = [item.min for region in block.reads for item in region.region]
    return any(any(has(item, axis) for axis in own) and any(has(item, axis) for axis in reduced) for item in bounds)


def is_dear(item: ProgramBlock) -> bool:
    """Whether an element takes more than a few instructions, or has a condition, as what is padded has."""
    return CONDITION in calls_of(item) or count_functions(item) > 0


def count_functions(item: ProgramBlock) -> int:
    """How often a block calls functions that take more than a few instructions."""
    return sum(not name.startswith(_CHEAP) for name in calls_of(item))


def calls_of(item: ProgramBlock) -> list[str]:
    """The names of what a block calls."""
    return [str(call.op.name) for call in _calls(item)]


def _calls(item: ProgramBlock) -> list[Call]:
    calls: list[Call] = []
    tvm_ffi.structural_walk(item.block.body, ((relax.Call, calls.append),))
    return calls


def is_shared(schedule: Schedule, item: ProgramBlock) -> bool:
    """Whether several blocks read the same elements of a block."""
    consumers = [schedule.get(ref) for ref in schedule.get_consumers(item.ref)]
    return len(consumers) > 1 and sum(map(size_of, consumers)) > size_of(item.block)


def size_of(block: tvm.s_tir.SBlock) -> int:
    """How many times the loops around a block run it."""
    return prod(int(axis.dom.extent) for axis in block.iter_vars)


def has_condition_along_rows(item: ProgramBlock) -> bool:
    """Whether a condition depends on where in a row an element is, as in a concatenation of rows."""
    conditions = [call.args[0] for call in _calls(item) if str(call.op.name) == CONDITION]
    return bool(item.spatial) and any(has(condition, item.spatial[-1]) for condition in conditions)
