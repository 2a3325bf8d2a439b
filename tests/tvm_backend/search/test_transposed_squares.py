"""What is elementwise behind a transposition is computed square by square, and no column of a square is gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.search.default_rules import default_rule

_RNG = np.random.default_rng(0)


def heads(rows: int, count: int, elements: int, dtype: str = "float32", more: bool = False) -> Any:
    """Rows of heads (R, H * D), times two, as (H, D, R); and what is added to each element of a column."""
    x = te.placeholder((rows, count * elements), dtype, "x")
    bias = te.placeholder((count * elements,), "float32", "bias")

    def element(head: Any, column: Any, row: Any) -> Any:
        doubled = x[row, head * elements + column].astype("float32") * 2.0
        return doubled + bias[head * elements + column] if more else doubled

    result = te.compute((count, elements, rows), element, "result")
    return tvm.IRModule({"main": te.create_prim_func([x, bias, result] if more else [x, result])})


def local_arrays(program: Any) -> list[list[int]]:
    """The shapes of the local arrays of a schedule."""
    arrays: list[Any] = []
    tvm_ffi.structural_walk(program["main"].body, ((tvm.s_tir.SBlock, lambda item: arrays.extend(item.alloc_buffers)),))
    return [list(map(int, item.shape)) for item in arrays if item.scope() == "local"]


def apart(program: Any, target: Any) -> list[int]:
    """How far the elements of the vectors lie apart that a compiled program loads."""
    lower, *_ = tirx.get_tir_pipeline(pipeline(target))
    with target:
        lowered = lower(tvm.tirx.transform.BindTarget(target.with_host(target))(program))
    strides: list[int] = []

    def look(load: Any) -> None:
        strides.extend(int(item.stride) for item in load.indices if isinstance(item, tirx.Ramp))

    for function in lowered.functions.values():
        tvm_ffi.structural_walk(function.body, ((tvm.ir.TensorLoad, look),))
    return strides


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(("rows", "elements"), [(32, 48), (128, 64), (40, 64)])
def test_rows_become_columns_square_by_square(
    tmp_path: Path, target: Any, rows: int, elements: int, more: bool, dtype: str
) -> None:
    program = heads(rows, 3, elements, dtype, more)
    schedule = default_rule(program)
    assert schedule is not None and len(local_arrays(schedule.mod)) == 1
    assert set(apart(schedule.mod, target)) == {1}
    build_library(schedule.mod, target, tmp_path / "kernel.so")
    x = (100 * _RNG.random((rows, 3 * elements))).astype(dtype)
    bias = _RNG.standard_normal(3 * elements).astype(np.float32)
    result = tvm.runtime.tensor(np.zeros((3, elements, rows), np.float32))
    operands = [x, bias] if more else [x]
    tvm.runtime.load_module(str(tmp_path / "kernel.so"))["main"](*map(tvm.runtime.tensor, operands), result)
    right = 2 * x.astype(np.float32) + (bias if more else np.float32(0))
    np.testing.assert_array_equal(result.numpy(), right.reshape(rows, 3, elements).transpose(1, 2, 0))


def test_what_lies_in_rows_or_has_no_whole_squares_is_scheduled_as_before() -> None:
    x = te.placeholder((64, 64), "float32", "x")
    along = te.compute(x.shape, lambda *at: x[at] * 2.0, "along")
    both = te.compute(x.shape, lambda i, j: x[i, j] + x[j, i], "both")  # each axis is across the rows of one
    for program in ([x, along], [x, both]):
        schedule = default_rule(tvm.IRModule({"main": te.create_prim_func(program)}))
        assert schedule is not None and not local_arrays(schedule.mod)
    odd = default_rule(heads(33, 2, 64))
    assert odd is not None and not local_arrays(odd.mod)
