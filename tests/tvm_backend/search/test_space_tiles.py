"""The tiles of a loop: all that TVM can draw, each once, and counted in the same way wherever they are counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.tvm_backend.search.design_space import factorisations, tiles
from autotune.tvm_backend.search.tasks import _value_count


@given(extent=st.integers(1, 300), parts=st.integers(1, 4), innermost=st.sampled_from([-1, 4, 64]))
@settings(deadline=None, max_examples=60)
def test_factorisations_are_all_there_once(extent, parts, innermost):
    tilings = factorisations(extent, parts, innermost)
    assert len(tilings) == len(set(tilings))
    assert all(math.prod(tile) == extent and (innermost < 0 or tile[-1] <= innermost) for tile in tilings)
    if parts == 2:
        assert len(tilings) == sum(extent % f == 0 for f in range(1, extent + 1) if innermost < 0 or f <= innermost)


def sampled(program, innermost, seed):
    """The trace of a schedule that tiles the first loop of a matrix product, and its instruction."""
    from tvm.s_tir import Schedule

    schedule = Schedule(program, seed=seed * 5_000_011, debug_mask="none")
    schedule.sample_perfect_tile(schedule.get_loops(schedule.get_sblock("c"))[0], 3, innermost)
    return schedule.trace, schedule.trace.insts[-1]


@pytest.mark.parametrize("innermost", [-1, 4, 64])
def test_the_tiles_of_a_loop_are_those_that_tvm_draws(matmul_of, innermost):
    program = matmul_of(32)
    drawn = set()
    for seed in range(1, 400):
        trace, instruction = sampled(program, innermost, seed)
        drawn.add(tuple(int(factor) for factor in trace.get_decision(instruction)))
    assert set(tiles(trace, instruction)) == drawn


@pytest.mark.parametrize(("innermost", "count"), [(-1, 21), (64, 21), (4, 15)])
def test_a_task_counts_as_many_values_as_the_knob_has(matmul_of, innermost, count):
    """A rule without a limit of the innermost factor says -1; such a tile used to count as one value."""
    trace, instruction = sampled(matmul_of(32), innermost, seed=1)
    assert math.prod(_value_count(trace, item) for item in trace.insts) == len(tiles(trace, instruction)) == count
