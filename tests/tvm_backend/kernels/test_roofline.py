"""What a machine can do at most."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.kernels.roofline import Roofline, measure, relative_rate


def test_a_machine_takes_at_least_so_long_for_operations_and_for_bytes():
    limits = Roofline(gflops=100.0, gb_per_s=10.0)
    assert limits.arithmetic_us(0.1) == pytest.approx(1000)
    assert limits.arithmetic_us(0.1, rate=4.0) == pytest.approx(250)
    assert limits.moving_us(10**6) == pytest.approx(100)


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


@pytest.mark.parametrize("ring_bytes", [1, 2**22])
def test_the_limits_of_this_machine_are_those_of_a_computer(target, ring_bytes):
    limits = measure(target, threads=2, ring_bytes=ring_bytes)
    assert 1 < limits.gflops < 10_000
    assert 0.1 < limits.gb_per_s < 20_000
    assert 0.9 * 2**17 <= limits.ring_bytes <= max(ring_bytes, 2**17)
