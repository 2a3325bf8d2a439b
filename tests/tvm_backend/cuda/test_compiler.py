"""What compiles the code that TVM generates does so exactly."""

from __future__ import annotations

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend.cuda import compiler, cubin

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) ratio(float* x) {
  x[threadIdx.x] = x[threadIdx.x] / x[threadIdx.x + 128];
}
"""


@pytest.fixture(params=("nvrtc", "nvcc"))
def tool(request, monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", request.param)
    compiler.find_compiler.cache_clear()
    yield request.param
    compiler.find_compiler.cache_clear()


def test_a_quotient_is_rounded_as_on_a_cpu(tool):
    """With fast math, there is no way for operands that the quick one rounds wrongly."""
    try:
        compiler.find_compiler()
    except MachineProblem as problem:
        pytest.skip(str(problem))
    import tvm

    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        found = compiler.compile_source(SOURCE, "sm_90")
    assert cubin.read(found).arch == "sm_90"
    assert b"div_rn" in found
