"""Numbers become elements of bfloat16 as hardware makes them, and what is not a number becomes none."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.intrinsics.bfloat16 import from_float, numbers, rounded

from ..quantised_nets import cpu_target

_NOT_NUMBERS = (0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800001, 0xFF800001, 0x7FFF8000)
_NUMBERS = (0.0, -0.0, 1.0, -2.5, 3.4e38, -3.4e38, 1e-40, np.inf, -np.inf)


def values() -> np.ndarray:
    bits = np.array(_NOT_NUMBERS, np.uint32).view(np.float32)
    return np.resize(np.concatenate([bits, np.array(_NUMBERS, np.float32)]), 16)


def test_an_array_keeps_what_is_not_a_number():
    x = values()
    np.testing.assert_array_equal(np.isnan(numbers(rounded(x))), np.isnan(x))


@pytest.mark.parametrize("lanes", (1, 8, 16))
@pytest.mark.parametrize(("cpu", "flag"), (("x86-64-v3", "avx2"), ("cooperlake", "avx512_bf16")))
def test_a_kernel_keeps_what_is_not_a_number(target, cpu, flag, lanes):
    here = cpu_target(cpu, flag)
    data = te.placeholder((16,), "float32", name="data")
    result = te.compute((16,), lambda i: from_float(data[i]), name="result")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, result])}))
    if lanes > 1:
        _, vector = schedule.split(*schedule.get_loops(schedule.get_sblock("result")), [None, lanes])
        schedule.vectorize(vector)
    x = values()
    output = tvm.runtime.empty((16,), "uint16")
    tvm.tirx.build(schedule.mod, target=here, pipeline=pipeline(here))["main"](tvm.runtime.tensor(x), output)
    computed = numbers(output.numpy())
    np.testing.assert_array_equal(np.isnan(computed), np.isnan(x))
    is_normal = ~np.isnan(x) & (np.abs(x) != np.float32(1e-40))  # the instruction takes what is smaller for zero
    np.testing.assert_array_equal(computed[is_normal], numbers(rounded(x))[is_normal])
