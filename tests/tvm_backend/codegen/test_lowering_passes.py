"""What our passes after TVM's own do to a program that is compiled for this machine's kind of CPU."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.kernels.build_kernel import lowering
from autotune.tvm_backend.types import IRModule


def summed_rows(columns: int) -> IRModule:
    """Sums over 64 rows of so many columns, in a local array of that size for each of 8 blocks of columns."""
    x = te.placeholder((64, 8, columns), "float32", "x")
    row = te.reduce_axis((0, 64), "row")
    sums = te.compute((8, columns), lambda block, column: te.sum(x[row, block, column], row), "sums")
    result = te.compute((8, columns), lambda block, column: sums[block, column] * 2.0, "result")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, result]))
    block = schedule.get_sblock("sums")
    schedule.compute_at(block, schedule.get_loops(schedule.get_sblock("result"))[0])
    schedule.set_scope(block, 0, "local")
    return schedule.mod


def compiled_text(module: IRModule, target: Any) -> str:
    """The code that LLVM makes of a module, as text."""
    with target, lowering(module, target):
        library = tirx.build(module, target=target, pipeline=pipeline(target))
    modules = [library, *library.imports]
    return "".join(item.inspect_source("ll") for item in modules if item.kind == "llvm")


@pytest.mark.parametrize(("columns", "on_heap"), ((448, False), (4096, True)), ids=("1.75 KiB", "16 KiB"))
def test_a_local_array_of_some_kilobytes_is_on_the_stack(target: Any, columns: int, on_heap: bool) -> None:
    assert ("TVMBackendAllocWorkspace" in compiled_text(summed_rows(columns), target)) == on_heap
