"""Tiles of products of int8 and bfloat16, of AMX or of vectors: those that a rule samples, and those chosen untuned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm

from autotune.tvm_backend.intrinsics.tile_kernels import register_kernel
from autotune.tvm_backend.isa.amx import AmxProduct
from autotune.tvm_backend.isa.available import TILES, dot_named
from autotune.tvm_backend.isa.instruction_sets import SETS
from autotune.tvm_backend.isa.values import LANES, TileProduct
from autotune.tvm_backend.types import BlockRV, LoopRV, PrimFunc, Schedule

# Names of blocks; those of products are the names of their rules too.
DOT_BLOCK = "integer_dot"
DEPTHWISE_BLOCK = "integer_depthwise"
PAD = "integer_pad"
OUT = "integer_out"
BFLOAT16_DOT = "bfloat16_dot"
BFLOAT16_DEPTHWISE = "bfloat16_depthwise"
LEFT_ALONE = {"schedule_rule": "None"}  # MetaSchedule leaves the block where it is; the rule of the product moves it
INTRINSIC = "autotune.intrinsic"  # the annotation that names the intrinsic of a product; "" for none
WINDOW = "autotune.window"  # the annotation that has the geometry of a product, where tiles may compute it
TILE_KIND = "autotune.tiles"  # the annotation that names the kind of tiles; without it, those of AMX
_MAX_CHUNKS = 8  # of a tile, as the next two
_MAX_ROWS = 8
_MAX_COLUMNS = 28
_WIDEST_COPY = 64  # bytes
_WIDE = 28 * 28  # pixels
_LOOPS = 9  # of a product in a tile: y, x, c, lane, down, right, chunk, word, byte
_MAX_TILE = 64  # pixels by chunks that tiles compute at once
_MAX_SKETCHES = 4  # kernels of tiles that the search chooses from
_FEW_REGISTERS = 16  # of a CPU whose vectors compute a product without an intrinsic


@dataclass(frozen=True)
class LoopOrder:
    """What an iteration of the parallel loop does.

    Attributes:
        loops: The tiles in their order: y, x and chunks c.
        parallel: How many of these loops the parallel loop is.
        inside: Whether an iteration makes the part of the padded input that it needs.
    """

    loops: str
    parallel: int = 1
    inside: bool = False


# An iteration of the parallel loop has several tiles: it costs a division to find out which they are.
_DOT_ORDERS = (LoopOrder("cyx", parallel=2), LoopOrder("ycx"), LoopOrder("ycx", inside=True))
_DEPTHWISE_ORDERS = (LoopOrder("yxc"), LoopOrder("yxc", inside=True), LoopOrder("cyx", inside=True))
Tile = tuple[int, int, int]  # rows, columns, chunks


def _dot_rule(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    vectors = _sketches(schedule, block, _DOT_ORDERS, _schedule_dot)
    if _window(schedule, block) is None:
        return vectors
    tiles = [(tile.rows, tile.columns, tile.chunks) for tile in _tile_products(schedule, block)[:_MAX_SKETCHES]]
    return [
        *vectors,
        *(made for tile in tiles for made in _sketches(schedule, block, _DOT_ORDERS, _schedule_tiles, tile)),
    ]


def _depthwise_rule(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    return _sketches(schedule, block, _DEPTHWISE_ORDERS, _schedule_depthwise)


def _sketches(
    schedule: Schedule,
    block: BlockRV,
    orders: Sequence[LoopOrder],
    apply: Callable[..., Schedule],
    tile: Tile | None = None,
) -> list[Schedule]:
    fitting = orders if PAD in block_names(schedule) else [order for order in orders if not order.inside] or orders[:1]
    return [apply(schedule.copy(), block, order, tile) for order in fitting]


def default_schedule(program: PrimFunc) -> Schedule | None:
    """Return a good schedule for a program with an integer product; None for any other program."""
    schedule = tvm.s_tir.Schedule(program)
    names = block_names(schedule)
    for name, by_hand in _BY_HAND:
        if name in names:
            return by_hand(schedule, schedule.get_sblock(name))
    return None


def _tile_products(schedule: Schedule, block: BlockRV) -> list[TileProduct]:
    """The kernels of tiles that may compute a product, those with the highest rates first."""
    window = _window(schedule, block)
    if window is None:
        return []
    _, rows, columns, chunks, _ = _extents(schedule, block)
    kind = _tile_kind(schedule, block)
    products = [kind(*tile, *window) for tile in _tiles((rows, columns, chunks), _MAX_TILE, _MAX_TILE)]
    fitting = [product for product in products if product.fits()]
    return sorted(fitting, key=lambda product: (-product.rate(), product.loads() / product.work))


def _dot_by_hand(schedule: Schedule, block: BlockRV) -> Schedule:
    """Wide images go by rows, as their weights stay in the cache; others by chunks of the output."""
    _, rows, columns, *_ = _extents(schedule, block)
    by_rows = rows * columns >= _WIDE and rows > 1
    order = _DOT_ORDERS[1 if by_rows else 0]
    product = next(iter(_tile_products(schedule, block)), None)
    if product is not None and product.rate() > product.vector_rate:
        return _schedule_tiles(schedule, block, order, (product.rows, product.columns, product.chunks))
    return _schedule_dot(schedule, block, order, _vector_tile(schedule, block))


def _vector_tile(schedule: Schedule, block: BlockRV) -> Tile:
    """The best tile of vectors whose sums and weights fit in the registers: LLVM would store sums in each step.

    A vector of weights costs as much as four pixels, since it comes from farther away.
    """
    _, rows, columns, chunks, _ = _extents(schedule, block)
    dot = dot_named(_intrinsic(schedule, block))
    most = dot.registers // (LANES // dot.lanes) if dot else _FEW_REGISTERS // 2
    fitting = [tile for tile in _tiles((rows, columns, chunks), most) if (tile[0] * tile[1] + 1) * tile[2] <= most]

    def merit(tile: Tile) -> tuple[float, int]:
        pixels = tile[0] * tile[1]
        vectors = tile[2]
        return pixels * vectors / (pixels + 4 * vectors), tile[1]

    return max(fitting, key=merit)


def _depthwise_by_hand(schedule: Schedule, block: BlockRV) -> Schedule:
    _, rows, columns, _, _ = _extents(schedule, block)
    inside = PAD in block_names(schedule)
    name = _intrinsic(schedule, block)
    registers = [
        item.depthwise.registers for item in SETS if item.depthwise is not None and item.depthwise.name == name
    ]
    most = next(iter(registers), _FEW_REGISTERS) // 2
    tile = max(_tiles((rows, columns, 1), most), key=lambda tile: (tile[0] * tile[1], -abs(tile[0] - 4)))
    return _schedule_depthwise(schedule, block, LoopOrder("yxc", inside=inside), tile)


def _tiles(extents: tuple[int, int, int], most: int, columns: int = _MAX_COLUMNS) -> Iterator[Tile]:
    """The tiles that divide the extents and have so many vectors, and so many columns, at most."""
    factors = [[item for item in range(1, extent + 1) if extent % item == 0] for extent in extents]
    limits = (_MAX_ROWS, columns, _MAX_CHUNKS)
    for tile in itertools.product(*factors):
        if prod(tile) <= most and all(size <= limit for size, limit in zip(tile, limits, strict=True)):
            yield (tile[0], tile[1], tile[2])


def _schedule_dot(schedule: Schedule, block: BlockRV, order: LoopOrder, tile: Tile | None) -> Schedule:
    """Keep the sums of a tile in registers, and go over the reduction once for them."""
    name = _take_intrinsic(schedule, block)
    dot = dot_named(name)
    outer = _tile_output(schedule, block, order, tile)
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    *_, y, x, c, lane, down, right, chunk, word, byte = schedule.get_loops(block)
    schedule.reorder(down, right, chunk, word, y, x, c, lane, byte)
    _finish(schedule, block, (y, x, c), lane, byte, down, dot.name if dot else "", dot.lanes if dot else LANES)
    _schedule_padding(schedule, outer, order)
    return schedule


def _schedule_tiles(schedule: Schedule, block: BlockRV, order: LoopOrder, tile: Tile) -> Schedule:
    """Compute a tile by one call of a kernel that goes over the whole reduction."""
    window = _window(schedule, block) or []
    kind = _tile_kind(schedule, block)
    _take_intrinsic(schedule, block)
    outer = _tile_output(schedule, block, order, tile, sampled=False)
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    product = kind(*tile, *window)
    register_kernel(product.name)
    kernel = schedule.blockize(schedule.get_loops(block)[-_LOOPS])
    init = schedule.decompose_reduction(kernel, schedule.get_loops(kernel)[-1])
    schedule.vectorize(schedule.get_loops(init)[-1])
    schedule.tensorize(kernel, product.name)
    schedule.set_scope(init, 0, "local")
    _schedule_padding(schedule, outer, order)
    return schedule


def _schedule_depthwise(schedule: Schedule, block: BlockRV, order: LoopOrder, tile: Tile | None) -> Schedule:
    name = _take_intrinsic(schedule, block)
    outer = _tile_output(schedule, block, order, tile)
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    *_, y, x, c, lane, down, group, tap = schedule.get_loops(block)
    schedule.reorder(down, group, y, x, c, lane, tap)
    _finish(schedule, block, (y, x, c), lane, tap, down, name, LANES)
    schedule.unroll(down)
    schedule.unroll(group)
    _schedule_padding(schedule, outer, order)
    return schedule


def _tile_output(
    schedule: Schedule, block: BlockRV, order: LoopOrder, tile: Tile | None, *, sampled: bool = True
) -> list[LoopRV]:
    """Tile the last block, and return the loops over tiles, the parallel one first."""
    (out,) = schedule.get_consumers(block)
    batch, y, x, c, lane = schedule.get_loops(out)
    limits = {"y": _MAX_ROWS, "x": _MAX_COLUMNS, "c": _MAX_CHUNKS}
    tiles: dict[str, LoopRV] = {}
    inner: dict[str, LoopRV] = {}
    for index, (axis, loop) in enumerate((("y", y), ("x", x), ("c", c))):
        decision = None if tile is None else [int(schedule.get(loop).extent) // tile[index], tile[index]]
        factors = schedule.sample_perfect_tile(loop, 2, limits[axis], decision=decision) if sampled else decision
        tiles[axis], inner[axis] = schedule.split(loop, factors)
    schedule.reorder(*(tiles[axis] for axis in order.loops), inner["y"], inner["x"], inner["c"], lane)
    for axis in "yxc":
        schedule.unroll(inner[axis])
    schedule.vectorize(lane)
    outer = [schedule.fuse(batch, *(tiles[axis] for axis in order.loops[: order.parallel]))]
    outer += [tiles[axis] for axis in order.loops[order.parallel :]]
    schedule.parallel(outer[0])
    return outer


def _finish(
    schedule: Schedule,
    block: BlockRV,
    tile: tuple[LoopRV, LoopRV, LoopRV],
    lane: LoopRV,
    last: LoopRV,
    reduction: LoopRV,
    intrinsic: str,
    lanes: int,
) -> None:
    """Unroll the loops over a tile, and compute its innermost loops by an intrinsic; without one, by vectors."""
    if not intrinsic:
        schedule.reorder(last, lane)
        schedule.vectorize(lane)
    init = schedule.decompose_reduction(block, reduction)
    *_, y, x, c, vector = schedule.get_loops(init)
    if intrinsic:
        schedule.vectorize(vector)
    else:
        schedule.unroll(last)
    for loop in (*tile, y, x, c):
        schedule.unroll(loop)
    if intrinsic:
        _, vector = schedule.split(lane, [None, lanes])
        schedule.tensorize(vector, intrinsic)
    # After `tensorize`, as the intrinsic is described in the global scope, where 1 KiB or more is on the heap.
    schedule.set_scope(init, 0, "local")


def _schedule_padding(schedule: Schedule, outer: list[LoopRV], order: LoopOrder) -> None:
    if PAD not in block_names(schedule):
        return
    pad = schedule.get_sblock(PAD)
    if order.inside:
        schedule.compute_at(pad, outer[0], preserve_unit_loops=True)
    else:
        batch, row, column, *_ = schedule.get_loops(pad)
        alone = int(schedule.get(row).extent) == 1
        schedule.parallel(schedule.fuse(batch, row, *([column] if alone else [])))
    *_, chunk, lane = schedule.get_loops(pad)
    copied = schedule.fuse(chunk, lane)
    size = int(schedule.get(copied).extent)
    width = next(width for width in (_WIDEST_COPY, 32, 16, size) if size % width == 0)
    _, vector = schedule.split(copied, [None, width])
    schedule.vectorize(vector)


def block_names(schedule: Schedule) -> set[str]:
    """Return the names of the blocks of a schedule; none for a kernel that TVM writes as a whole."""
    looked_at = schedule.copy()  # what is asked of a schedule becomes a part of its trace
    try:
        blocks = looked_at.get_child_blocks(looked_at.get_sblock("root"))
    except tvm.s_tir.ScheduleError:
        return set()
    return {str(looked_at.get(item).name_hint) for item in blocks}


def _extents(schedule: Schedule, block: BlockRV) -> list[int]:
    looked_at = schedule.copy()  # what is asked of a schedule becomes a part of its trace
    (out,) = looked_at.get_consumers(block)
    return [int(looked_at.get(loop).extent) for loop in looked_at.get_loops(out)]


def _intrinsic(schedule: Schedule, block: BlockRV) -> str:
    return str(schedule.get(block).annotations[INTRINSIC])


def _window(schedule: Schedule, block: BlockRV) -> list[int] | None:
    """The geometry that a block states; None if its products are not for tiles."""
    window = schedule.get(block).annotations.get(WINDOW)
    return [int(item) for item in window] if window is not None else None


def _tile_kind(schedule: Schedule, block: BlockRV) -> type[TileProduct]:
    prefix = str(schedule.get(block).annotations.get(TILE_KIND, AmxProduct.prefix))
    return next(kind for kind in TILES if kind.prefix == prefix)


def tile_annotations(kind: type[TileProduct], geometry: Sequence[int]) -> dict[str, Any]:
    """Return the annotations of the block of a product that tiles may compute.

    Args:
        geometry: What a `TileProduct` says after the tile.
    """
    named = {} if kind is AmxProduct else {TILE_KIND: kind.prefix}  # programs with AMX are as before there were others
    return {WINDOW: list(geometry), **named}


def _take_intrinsic(schedule: Schedule, block: BlockRV) -> str:
    """The intrinsic that a block names. The annotations are removed, as they mean nothing to the compiler."""
    name = _intrinsic(schedule, block)
    if _window(schedule, block) is not None:
        schedule.unannotate(block, WINDOW)
        if TILE_KIND in schedule.get(block).annotations:
            schedule.unannotate(block, TILE_KIND)
    schedule.unannotate(block, INTRINSIC)
    return name


_BY_HAND = (
    (DOT_BLOCK, _dot_by_hand),
    (DEPTHWISE_BLOCK, _depthwise_by_hand),
    (BFLOAT16_DOT, _dot_by_hand),
    (BFLOAT16_DEPTHWISE, _depthwise_by_hand),
)


def register() -> None:
    """Register the rules under the names of their blocks, as MetaSchedule looks for them."""
    dots = ((name, _dot_rule) for name in (DOT_BLOCK, BFLOAT16_DOT))
    depthwise = ((name, _depthwise_rule) for name in (DEPTHWISE_BLOCK, BFLOAT16_DEPTHWISE))
    for name, rule in (*dots, *depthwise):
        tvm.register_global_func(f"s_tir.meta_schedule.cpu.{name}", rule, override=True)
