"""The tiles of a pipeline: how warps share them, and what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.tvm_backend.cuda.pipeline_tiles import Tiles

TILES = Tiles(rows=128, pieces=16, vector=8, threads=256, steps=2, stages=3)


@pytest.mark.parametrize(
    ("rows", "pieces", "threads", "warps"),
    [(128, 16, 128, (2, 2)), (256, 16, 256, (4, 2)), (32, 16, 128, (1, 4)), (32, 4, 64, (1, 2)), (32, 4, 256, None)],
)
def test_warps_share_a_tile_so_that_each_loads_least(rows, pieces, threads, warps):
    assert replace(TILES, rows=rows, pieces=pieces, threads=threads).warps == warps


def test_tiles_of_the_operands_and_then_of_the_results_take_the_same_memory():
    assert replace(TILES, stages=5).shared_bytes() == 5 * (128 + 128) * 64
    assert TILES.shared_bytes() == 128 * 128 * 4, "the results of three stages are larger than these"


def test_sums_need_registers_and_tiles_memory():
    assert TILES.fits(TILES.shared_bytes())
    assert not TILES.fits(TILES.shared_bytes() - 1)
    assert not replace(TILES, rows=256, pieces=32).fits(1 << 20), "256 sums of a thread"
    assert not replace(TILES, rows=32, pieces=4).fits(1 << 20), "8 warps have no fragment each"
