"""A second opinion on schedules for CUDA: PoCL runs what TVM writes for them in OpenCL C."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.load import load_for_tuning

pytest.importorskip("pyopencl", reason="NO SECOND OPINION: pip install pyopencl pocl-binary-distribution")


@pytest.fixture
def script(load_script):
    load_for_tuning("cuda", ())
    return load_script("check_opencl")


def test_schedules_of_a_sum_are_right(script):
    assert list(script.check("sum", 2)) == ["", ""]


def test_a_kernel_that_computes_something_else_is_wrong(script, monkeypatch):
    compiled = script.compiled

    def beginning_with_one(scheduled, host):
        source, kernels = compiled(scheduled, host)
        return source.replace("= 0.000000e+00f", "= 1.000000e+00f"), kernels

    monkeypatch.setattr(script, "compiled", beginning_with_one)
    (problem,) = script.check("product_fp32", 1)
    assert "output 2 is wrong" in problem
