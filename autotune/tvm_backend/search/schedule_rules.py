"""Schedule rules that blocks of our tensor programs name; MetaSchedule finds them by these names.

Two are for the transforms of Winograd's algorithm, one is for convolutions over pixels in a row.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import ScheduleError

from autotune.tvm_backend.types import BlockRV, LoopRV, Schedule


def _schedule_winograd_input(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    """Schedule the input transform.

    A parallel piece is a row of tiles of a chunk of channels. Its padded input and a tile's rows stay in the caches.
    """
    (rows,) = schedule.get_producers(block)
    (pad,) = schedule.get_producers(rows)
    across, patch = (schedule.get(loop).extent for loop in schedule.get_loops(rows)[3:5])
    position, chunk, tile, lane = schedule.get_loops(block)
    outer, inner = schedule.split(position, [patch, patch])
    line, x = schedule.split(tile, [None, across])
    schedule.reorder(chunk, line, x, outer, inner, lane)
    piece = schedule.fuse(chunk, line)
    schedule.parallel(piece)
    _unroll_and_vectorize(schedule, inner, lane)
    schedule.compute_at(rows, x)
    *_, i, w, lane = schedule.get_loops(rows)
    schedule.reorder(w, i, lane)
    _unroll_and_vectorize(schedule, i, lane)
    schedule.compute_at(pad, piece)
    schedule.vectorize(schedule.get_loops(pad)[-1])
    return [schedule]


def _schedule_winograd_output(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    """Schedule the output transform.

    A parallel piece is a row of tiles of a chunk of channels. A tile's columns stay in the caches. Operators that are
    fused to the convolution are computed where its results are written.
    """
    _inline_consumers(schedule, block)
    (columns,) = schedule.get_producers(block)
    batch, chunk, height, width, lane = schedule.get_loops(block)
    tile = schedule.get(schedule.get_loops(columns)[4]).extent
    y, h = schedule.split(height, [None, tile])
    x, w = schedule.split(width, [None, tile])
    schedule.reorder(batch, chunk, y, x, h, w, lane)
    schedule.parallel(schedule.fuse(batch, chunk, y))
    _unroll_and_vectorize(schedule, w, lane)
    schedule.compute_at(columns, x)
    *_, i, b, lane = schedule.get_loops(columns)
    schedule.reorder(b, i, lane)
    _unroll_and_vectorize(schedule, i, lane)
    return [schedule]


def _schedule_image(schedule: Schedule, block: BlockRV) -> list[Schedule]:
    """Compute the operators that are fused to a convolution where a row of pixels becomes an image."""
    _inline_consumers(schedule, block)
    return [schedule]


def _inline_consumers(schedule: Schedule, block: BlockRV) -> None:
    """Inline the consumers one after the other, up to the first that is not elementwise.

    Two consumers of which one reads the other, as in x * sigmoid(x), count as elementwise.
    """
    while consumers := schedule.get_consumers(block):
        inner = [item for item in consumers if schedule.get_consumers(item)]
        try:
            if len(consumers) == 1:
                schedule.reverse_compute_inline(consumers[0])
            elif inner:
                schedule.compute_inline(inner[0])
            else:
                return
        except ScheduleError:
            return


def _unroll_and_vectorize(schedule: Schedule, unrolled: LoopRV, vectorized: LoopRV) -> None:
    schedule.unroll(unrolled)
    schedule.vectorize(vectorized)


tvm.register_global_func("s_tir.meta_schedule.cpu.winograd_input", _schedule_winograd_input, override=True)
tvm.register_global_func("s_tir.meta_schedule.cpu.winograd_output", _schedule_winograd_output, override=True)
tvm.register_global_func("s_tir.meta_schedule.cpu.image_of_pixels", _schedule_image, override=True)
