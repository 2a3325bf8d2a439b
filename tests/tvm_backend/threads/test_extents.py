"""The pool is told the length of each parallel loop, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.script import tirx as T

from autotune.tvm_backend.threads.extents import MAX_THREADS, announce_extents


def program(kind: Any) -> Any:
    @T.prim_func
    def main(rows: T.Buffer((12, 8), "float32"), sums: T.Buffer((12,), "float32")):
        for row in kind(12):
            sums[row] = T.float32(0)
            for lane in T.serial(8):
                sums[row] = sums[row] + rows[row, lane]

    return tvm.IRModule({"main": main})


def text(module: Any) -> str:
    return announce_extents(module["main"]).script()


def test_a_parallel_loop_is_announced_before_it_begins() -> None:
    announced = text(program(T.parallel))
    assert announced.index('"autotune_announce", 12') < announced.index("T.parallel(12)")


@pytest.mark.parametrize("kind", [T.serial, T.unroll, T.vectorized])
def test_a_program_without_parallel_loops_stays_as_it_is(kind: Any) -> None:
    module = program(kind)
    assert announce_extents(module["main"]).same_as(module["main"])


def test_a_parallel_loop_in_a_serial_one_is_announced_each_time() -> None:
    @T.prim_func
    def main(rows: T.Buffer((3, 12), "float32")):
        for step in T.serial(3):
            for row in T.parallel(12):
                rows[step, row] = T.float32(1)

    announced = text(tvm.IRModule({"main": main}))
    assert announced.index("range(3)") < announced.index('"autotune_announce", 12') < announced.index("T.parallel(12)")


def test_a_long_index_is_announced_as_the_pool_reads_it() -> None:
    @T.prim_func
    def main(rows: T.Buffer((T.int64(12),), "float32")):
        for row in T.parallel(T.int64(12)):
            rows[row] = T.float32(1)

    assert 'autotune_announce", 12)' in text(tvm.IRModule({"main": main}))


def test_a_program_on_fewer_threads_says_how_many() -> None:
    module = program(T.parallel)
    module.update_func(module.get_global_var("main"), module["main"].with_attr(MAX_THREADS, 3))
    assert '"autotune_announce_limited", 12, 3)' in text(module)
