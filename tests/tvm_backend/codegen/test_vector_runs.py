"""Over how many iterations of a vector loop the tensors of a block lie side by side."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, tirx

from autotune.tvm_backend.codegen.vector_runs import run_of


def run(rows, element, *shape):
    """Of the innermost loop of a copy whose input has so many rows of 16 columns."""
    data = te.placeholder((rows, 16), name="data")
    index = te.placeholder((64,), "int32", name="index")
    out = te.compute(shape, lambda *place: element(data, index, *place), name="out")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, index, out])}))
    block = schedule.get_sblock("out")
    return run_of(schedule, block, schedule.get_loops(block)[-1])


@pytest.mark.parametrize(
    ("element", "shape", "wanted"),
    [
        (lambda data, _, i: data[i // 16, i % 16], (64,), 64),
        (lambda data, _, i: data[3 - i // 16, i % 16], (64,), 16),
        (lambda data, _, i: data[i % 4, i // 4], (64,), 0),
        (lambda data, _, i, j: data[i, j] + data[i, j // 4], (4, 16), 4),
        (lambda data, index, i: data[0, index[i]], (16,), 0),
    ],
)
def test_the_longest_run_over_which_all_tensors_are_neighbours(element, shape, wanted):
    assert run(4, element, *shape) == wanted


def test_what_is_not_known_has_no_runs():
    assert run(tirx.Var("n", "int32"), lambda data, _, i: data[i // 16, i % 16], 64) == 0
