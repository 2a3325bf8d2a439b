"""Programs that run beside each other are one parallel loop over pieces of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.threads.concurrent_loops import JOINED, join_loops, joined
from autotune.tvm_backend.threads.extents import MAX_THREADS

ROWS = 20
NAMES = ("one", "other")


@T.prim_func(s_tir=True)
def doubled(x: T.Buffer((ROWS, 8), "float32"), y: T.Buffer((ROWS, 8), "float32")):
    for row, column in T.grid(ROWS, 8):
        with T.sblock("double"):
            i, j = T.axis.remap("SS", [row, column])
            y[i, j] = x[i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def shifted(x: T.Buffer((ROWS, 8), "float32"), y: T.Buffer((ROWS, 8), "float32")):
    z = T.sblock_alloc_buffer((ROWS, 8), "float32")
    for row, column in T.grid(ROWS, 8):
        with T.sblock("shift"):
            i, j = T.axis.remap("SS", [row, column])
            z[i, j] = x[i, j] + T.float32(1)
    for row, column in T.grid(ROWS, 8):
        with T.sblock("copy"):
            i, j = T.axis.remap("SS", [row, column])
            y[i, j] = z[ROWS - 1 - i, j]


def in_parallel(program: Any, *blocks: str) -> Any:
    schedule = Schedule(program)
    for name in blocks:
        schedule.parallel(schedule.get_loops(schedule.get_sblock(name))[0])
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def parallel_loops(program: Any) -> list[int]:
    """Return how many iterations each parallel loop of a program has when it is lowered."""
    passes = [
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    lowered = join_loops(tvm.transform.Sequential(passes)(module)["main"])
    loops = list[Any]()
    tvm_ffi.structural_walk(lowered.body, ((tirx.For, loops.append),))
    return [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]


@pytest.mark.parametrize(
    "programs",
    [
        (in_parallel(doubled, "double"), in_parallel(doubled, "double")),
        (in_parallel(doubled, "double"), in_parallel(shifted)),
        (in_parallel(shifted, "shift", "copy"), in_parallel(doubled, "double")),
    ],
    ids=["both parallel, and the same", "one is serial", "one has two parallel loops"],
)
def test_joined_programs_compute_what_each_computes(programs, target, tmp_path) -> None:
    program = joined(NAMES, programs, [1.0, 3.0], 2)
    assert program.attrs["tirx.is_scheduled"], "as both are"
    assert [(str(name), int(count)) for name, count in program.attrs[JOINED]] == [("one", 2), ("other", 2)]
    library = tmp_path / "joined.so"
    build_library(tvm.IRModule({"main": program.with_attr("global_symbol", "main")}), target, library)
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal((ROWS, 8)).astype("float32") for _ in range(2)]
    x, y, other_x, other_y = (tvm.runtime.tensor(item) for item in (inputs[0], inputs[0], inputs[1], inputs[1]))
    tvm.runtime.load_module(str(library))["main"](x, y, other_x, other_y)
    for program, data, result in zip(programs, inputs, (y, other_y), strict=True):
        plain = data * 2 if len(program.body.block.alloc_buffers) == 0 else data[::-1] + 1
        np.testing.assert_allclose(result.numpy(), plain, rtol=1e-6)


def test_pieces_are_shared_by_work_and_are_no_more_than_iterations() -> None:
    same = [in_parallel(doubled, "double")] * 2
    assert parallel_loops(joined(NAMES, same, [1.0, 3.0], 2)) == [4 + 12]
    assert parallel_loops(joined(NAMES, same, [1.0, 3.0], 8)) == [16 + ROWS]


def test_a_serial_program_is_one_piece() -> None:
    program = joined(NAMES, [in_parallel(doubled, "double"), in_parallel(shifted)], [1.0, 1.0], 2)
    assert parallel_loops(program) == [8 + 1]


def test_a_program_has_no_more_pieces_than_it_may_have_threads() -> None:
    limited = in_parallel(doubled, "double").with_attr(MAX_THREADS, 1)
    program = joined(NAMES, [limited, in_parallel(doubled, "double")], [1.0, 1.0], 2)
    assert parallel_loops(program) == [1 + 8]


def test_programs_with_several_parallel_loops_run_one_after_another() -> None:
    program = joined(NAMES, [in_parallel(shifted, "shift", "copy"), in_parallel(doubled, "double")], [1.0, 1.0], 2)
    assert parallel_loops(program) == [ROWS, ROWS, ROWS]
