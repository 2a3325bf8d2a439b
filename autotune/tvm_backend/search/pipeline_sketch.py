"""The sketch of products on tensor cores: a rule of MetaSchedule's that tiles a product for `cuda/tensor_pipeline.py`.

The results of a product are a matrix for each element of the batch: rows and columns are fused to one loop each. A
block of threads computes a tile of it, in shared memory. The operators that follow are computed where results leave
shared memory, by threads that each take as many as fill 16 bytes. Which tiles, how many threads and how far ahead
operands are copied is sampled. Blocks are numbered in groups of tiles below each other, which share columns in the L2
cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorRegion
from tvm.ir.utils import derived_object
from tvm.s_tir import ScheduleError
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule
from tvm.tirx import IndexMap

from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.cuda.products import PIECE, ROLES, Role, element_of, product_of, roles_of
from autotune.tvm_backend.cuda.tensor_pipeline import RESULTS, SHARED
from autotune.tvm_backend.types import Block, BlockRV, Buffer, LoopRV, Schedule, TuneContext

_ROWS = (32, 64, 128, 256)
_COLUMNS = (32, 64, 128, 256)
_THREADS = (64, 128, 256)
_STEPS = (2, 4)
_STAGES = (3, 4, 5)
_GROUPS = (1, 4, 8)
_LOCAL = "local"
Elements = Sequence[str]
Choose = Callable[[Sequence[int]], object]


@derived_object
class PipelineRule(PyScheduleRule):  # type: ignore[misc]
    """Schedules the products whose elements tensor cores multiply; all other blocks stay as they are.

    Args:
        elements: The names of these types, as in `cuda/products.py`.
    """

    def __init__(self, elements: Elements) -> None:
        super().__init__()
        self.elements = tuple(elements)

    def _initialize_with_tune_context(self, context: TuneContext) -> None:
        """Needs nothing."""

    def apply(self, schedule: Schedule, block: BlockRV) -> list[Schedule]:
        """Return the schedule of a product in place of the one that is given."""
        return [pipelined(schedule, block, self.elements) or schedule]

    def clone(self) -> PipelineRule:
        """Return another one."""
        return PipelineRule(self.elements)


def pipelined(schedule: Schedule, block: BlockRV, elements: Elements) -> Schedule | None:
    """Return a copy of a schedule with a product tiled for tensor cores; None where a block is no such product.

    Args:
        elements: The names of the types that they may multiply.
    """
    if not any(int(item.iter_type) != 0 for item in schedule.get(block).iter_vars):
        return None
    copy = schedule.copy()
    try:
        return copy if _tile(copy, block, elements) else None
    except ScheduleError:  # it cannot be moved there
        return None


def _tile(schedule: Schedule, block: BlockRV, elements: Elements) -> bool:
    for producer in schedule.get_producers(block):
        schedule.compute_inline(producer)
    roles = roles_of(schedule.get(block))
    element = element_of(schedule.get(block))
    if roles is None or element is None or element.name not in elements:
        return False
    if not _is_in_order(schedule.get(block).writes[0], schedule.get(block)):
        return False
    write_back = schedule.cache_write(block, 0, SHARED)
    last = _follow(schedule, block, write_back)
    results = _matrix(schedule.get(block), roles)
    schedule.transform_layout(block, ("write", 0), results)
    schedule.transform_block_layout(block, _fused(list(schedule.get(block).iter_vars), roles))
    stored = _collected(schedule, last, results) if last is not None else write_back
    schedule.transform_block_layout(stored, results)
    if product_of(schedule.get(block)) is None:
        return False
    _distribute(schedule, block, stored, last)
    return True


def _follow(schedule: Schedule, block: BlockRV, write_back: BlockRV) -> BlockRV | None:
    """Inline what follows a product into the last operator, and return that; None where nothing does, or it may not."""
    shape = _spatial(schedule.get(block))
    later = _later(schedule, write_back)
    *inner, last = later or [None]
    if last is None or schedule.get_consumers(last) or not all(schedule.get_consumers(item) for item in inner):
        return None
    results = [schedule.get(item).writes[0].source for item in (write_back, *inner)]
    if not all(_is_map(schedule.get(item), shape, results) for item in later):
        return None
    for item in (write_back, *inner):
        schedule.compute_inline(item)
    return last


def _later(schedule: Schedule, block: BlockRV) -> list[BlockRV]:
    """The blocks that depend on a block, in the order of the program."""
    names = set[str]()
    waiting = [block]
    while waiting:
        consumers = schedule.get_consumers(waiting.pop())
        waiting += [item for item in consumers if _name(schedule, item) not in names]
        names |= {_name(schedule, item) for item in consumers}
    everything = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [item for item in everything if _name(schedule, item) in names]


def _name(schedule: Schedule, block: BlockRV) -> str:
    return str(schedule.get(block).name_hint)


def _is_map(block: Block, shape: list[int], results: Sequence[Buffer]) -> bool:
    """Whether a block computes an element of a tensor of a shape from those of results in the same place."""
    if _spatial(block) != shape or len(block.iter_vars) != len(shape):
        return False
    regions = [block.writes[0], *(item for item in block.reads if any(map(item.source.same_as, results)))]
    return all(_is_in_order(item, block) for item in regions)


def _is_in_order(region: TensorRegion, block: Block) -> bool:
    """Whether the indices of a region are the variables of a block over its results."""
    variables = [item.var for item in block.iter_vars if int(item.iter_type) == 0]
    indices = [item.min for item in region.region]
    return len(indices) == len(variables) and all(map(tvm_ffi.structural_equal, indices, variables))


def _spatial(block: Block) -> list[int]:
    return [int(item.dom.extent) for item in block.iter_vars if int(item.iter_type) == 0]


def _matrix(block: Block, roles: Sequence[Role]) -> IndexMap:
    """The map of the indices of results to those of matrices."""
    kept = [index for index, role in enumerate(roles) if role != "term"]
    return _fused([block.iter_vars[index] for index in kept], [roles[index] for index in kept])


def _fused(axes: list[object], roles: Sequence[Role]) -> IndexMap:
    """The map that fuses the axes of a role to one."""
    variables = [tirx.Var(f"i{place}", str(axis.var.ty.dtype)) for place, axis in enumerate(axes)]  # type: ignore[attr-defined]
    fused = []
    for role in ROLES:
        index = None
        for axis, variable, kind in zip(axes, variables, roles, strict=True):
            if kind == role:
                extent = int(axis.dom.extent)  # type: ignore[attr-defined]
                index = variable if index is None else index * tirx.IntImm(str(variable.ty.dtype), extent) + variable
        if index is not None:
            fused.append(index)
    return IndexMap(variables, fused, None)


def _collected(schedule: Schedule, last: BlockRV, results: IndexMap) -> BlockRV:
    """Let the last operator write to registers, which are then stored together; return the block that stores."""
    stored = schedule.cache_write(last, 0, _LOCAL)
    schedule.transform_layout(last, ("write", 0), results)
    schedule.transform_block_layout(last, results)
    return stored


@dataclass(frozen=True)
class _Sizes:
    """What is sampled, with the names of its annotations: numbers, or the schedule's variables for them."""

    rows: object
    pieces: object
    vector: int
    threads: object
    steps: object
    stages: object


def _distribute(schedule: Schedule, block: BlockRV, stored: BlockRV, last: BlockRV | None) -> None:
    """Divide results among blocks of threads, and those of a tile among threads."""
    product = product_of(schedule.get(block))
    assert product is not None, "the caller knows that it is one"
    extents = product.extents
    choose = _sampler(schedule)
    sizes = _sizes(choose, extents, _vector(schedule.get(stored), extents["column"]))
    group = choose(_GROUPS if extents["row"] > _ROWS[-1] else _GROUPS[:1])
    tile, thread, vector = _divide(schedule, stored, sizes, group)
    schedule.vectorize(vector)
    if last is not None:
        schedule.compute_at(last, thread)
    schedule.compute_at(block, tile)
    _take(schedule, stored, last, thread, sizes.vector)
    _share(schedule, block, sizes.threads)
    for item in fields(sizes):
        schedule.annotate(block, PREFIX + item.name, getattr(sizes, item.name))


def _sizes(choose: Choose, extents: Mapping[Role, int], width: int) -> _Sizes:
    return _Sizes(
        rows=choose([size for size in _ROWS if size < 2 * extents["row"] or size == _ROWS[0]]),
        pieces=choose([size // width for size in _COLUMNS if size < 2 * extents["column"] or size == _COLUMNS[0]]),
        vector=width,
        threads=choose(_THREADS),
        steps=choose(_STEPS),
        stages=choose(_STAGES),
    )


def _divide(schedule: Schedule, stored: BlockRV, sizes: _Sizes, group: object) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Return the loops over tiles, over the threads of each, and over what a thread stores together."""
    *batch, row, column = schedule.get_loops(stored)
    outer, vector = schedule.split(column, [None, sizes.vector])
    across, piece = schedule.split(outer, [None, sizes.pieces])
    down, below = schedule.split(row, [None, sizes.rows])
    groups, in_group = schedule.split(down, [None, group])
    schedule.reorder(*batch, groups, across, in_group, below, piece, vector)
    tile = schedule.fuse(*batch, groups, across, in_group)
    schedule.bind(tile, "blockIdx.x")
    _, thread = schedule.split(schedule.fuse(below, piece), [None, sizes.threads])
    schedule.bind(thread, "threadIdx.x")
    return tile, thread, vector


def _sampler(schedule: Schedule) -> Choose:
    def choose(sizes: Sequence[int]) -> object:
        return schedule.sample_categorical(list(sizes), [1 / len(sizes)] * len(sizes))

    return choose


def _vector(stored: Block, columns: int) -> int:
    """How many results a thread stores together: those of 16 bytes."""
    size = tirx.const(0, stored.writes[0].source.dtype).ty.dtype.bits // 8
    return math.gcd(PIECE // size, columns)


def _take(schedule: Schedule, stored: BlockRV, last: BlockRV | None, thread: LoopRV, width: int) -> None:
    """Let threads take results from shared memory, and what else the last operator reads from the global one."""
    reader = stored if last is None else last
    for place in range(len(schedule.get(reader).reads)):
        region = schedule.get(reader).reads[place]
        scope = str(region.source.scope())
        if scope == _LOCAL:
            continue
        copied = schedule.cache_read(reader, place, _LOCAL)
        schedule.compute_at(copied, thread)
        if scope == SHARED:
            schedule.annotate(copied, RESULTS, width)
        else:
            _together(schedule, copied, width, schedule.vectorize)
    if last is not None:
        _together(schedule, last, width, schedule.unroll)
        schedule.annotate(last, "meta_schedule.inline_rule", "disable")


def _together(schedule: Schedule, block: BlockRV, width: int, do: Callable[[LoopRV], None]) -> None:
    """Do something to the loop over results that a thread stores together, where a block is in it."""
    innermost = schedule.get_loops(block)[-1]
    if int(schedule.get(innermost).extent) == width > 1 and schedule.get(innermost).thread_binding is None:
        do(innermost)


def _share(schedule: Schedule, block: BlockRV, threads: object) -> None:
    """Let the threads compute the tile, as they would without tensor cores."""
    _, *inside = schedule.get_loops(block)
    spatial = inside[:-1]
    fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    _, thread = schedule.split(fused, [None, threads])
    schedule.bind(thread, "threadIdx.x")
