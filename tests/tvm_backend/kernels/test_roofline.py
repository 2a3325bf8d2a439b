"""What a machine can do at most."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.kernels.roofline import Roofline, measure


def test_a_kernel_takes_at_least_what_its_operations_or_its_bytes_take():
    limits = Roofline(gflops=100.0, gb_per_s=10.0)
    assert limits.least_us(gflop=0.1, bytes=1000) == pytest.approx(1000)
    assert limits.least_us(gflop=0.001, bytes=10**6) == pytest.approx(100)


def test_the_limits_of_this_machine_are_those_of_a_computer(target):
    limits = measure(target, threads=1)
    assert 1 < limits.gflops < 10_000
    assert 0.1 < limits.gb_per_s < 2000
