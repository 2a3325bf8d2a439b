"""What a machine can do at most."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.kernels.roofline import Roofline, measure, relative_rate


def test_a_kernel_takes_at_least_what_its_operations_or_its_bytes_take():
    limits = Roofline(gflops=100.0, gb_per_s=10.0)
    assert limits.least_us(gflop=0.1, bytes=1000) == pytest.approx(1000)
    assert limits.least_us(gflop=0.001, bytes=10**6) == pytest.approx(100)
    assert limits.least_us(gflop=0.1, bytes=1000, rate=4.0) == pytest.approx(250)


@pytest.mark.parametrize(
    ("mcpu", "dtypes", "rate"),
    [
        ("x86-64-v3", ("float32", "float32", "float32"), 1.0),
        ("x86-64-v3", ("uint8", "int8", "int32"), 2.0),
        ("cascadelake", ("uint8", "int8", "uint8"), 4.0),
        ("cascadelake", ("uint16", "uint16", "uint16"), 1.0),
        ("znver4", ("uint16", "uint16", "float32"), 2.0),
        ("znver4", ("float32", "int8", "float32"), 1.0),  # weights in bytes that are multiplied in floats
    ],
)
def test_the_rate_of_a_program_is_that_of_the_instructions_for_its_numbers(target, mcpu, dtypes, rate):
    import tvm
    from tvm import te

    first, second = (te.placeholder((8,), dtype, name) for name, dtype in zip("ab", dtypes, strict=False))
    result = te.compute((8,), lambda i: first[i].astype(dtypes[2]) * second[i].astype(dtypes[2]), "c")
    program = tvm.IRModule({"main": te.create_prim_func([first, second, result])})
    assert relative_rate(program, tvm.target.Target({"kind": "llvm", "mcpu": mcpu})) == rate


def test_the_limits_of_this_machine_are_those_of_a_computer(target):
    limits = measure(target, threads=1)
    assert 1 < limits.gflops < 10_000
    assert 0.1 < limits.gb_per_s < 2000
