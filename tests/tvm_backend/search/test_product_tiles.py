"""The first candidates of a large product keep a tile in registers, and read the matrix once."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from tvm import te
from tvm.target import Target

from autotune import strategies
from autotune.strategies import samplers
from autotune.tvm_backend.operators.packed_product import te_product
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.product_tiles import product_tiles
from autotune.tvm_backend.search.propose import Request, propose

WIDE = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
NARROW = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.fixture
def knobs_of(as_program):
    def build(rows: tuple[int, ...], inner: int, chunks: int, block: int, target: Target = WIDE) -> Knobs:
        data = te.placeholder((*rows, inner), name="data")
        weight = te.placeholder((chunks, inner, block), name="weight")
        return Knobs(as_program(data, weight, te_product(data, weight)), target)

    return build


def decided(knobs: Knobs, configuration: tuple[int, ...]) -> list[Any]:
    return [knob.values[position] for knob, position in zip(knobs.space.knobs, configuration, strict=True)]


def test_all_rows_of_a_block_multiply_a_part_of_the_matrix_before_the_next(knobs_of) -> None:
    knobs = knobs_of((512,), 192, 24, 16)
    first, *others = product_tiles(knobs)
    _, rows, chunks, lanes, depth, _ = decided(knobs, first)
    assert (rows, chunks, lanes, depth) == ((4, 1, 16, 8), (6, 1, 2, 2), (1, 1, 1, 16), (3, 64))
    assert len(others) > 1
    assert all(knobs.apply(item) is not None for item in (first, *others))


@pytest.mark.parametrize(("cpu", "registers"), [(WIDE, 16), (NARROW, 8)])
def test_the_sums_of_a_tile_take_half_of_the_registers(knobs_of, cpu: Target, registers: int) -> None:
    block = 16 if cpu is WIDE else 8
    knobs = knobs_of((1, 64), 64, 64, block, cpu)
    configurations = list(product_tiles(knobs))
    assert configurations
    for configuration in configurations:
        _, outer, rows, chunks, *_ = decided(knobs, configuration)
        assert rows[-1] * chunks[-1] == registers
        assert prod(outer) == outer[0] == 1


def test_products_of_few_rows_or_too_small_for_all_threads_and_other_programs_have_none(knobs_of, matmul_of) -> None:
    assert list(product_tiles(knobs_of((4,), 64, 64, 16))) == []
    assert list(product_tiles(knobs_of((16,), 64, 8, 16))) == []
    assert list(product_tiles(Knobs(matmul_of(64), WIDE))) == []


def test_a_first_batch_has_some(knobs_of) -> None:
    knobs = knobs_of((128,), 64, 64, 16)
    request = Request((), (), 8, None, 1)
    batch = propose(knobs, strategies.get("random"), samplers.make("greedy", 0.0, True), request).candidates
    chosen = {knobs.find(item.trace) for item in batch}
    assert len(chosen & set(product_tiles(knobs))) == 2
