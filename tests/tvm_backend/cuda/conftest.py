"""Each of the compilers for CUDA."""

from __future__ import annotations

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend.cuda import compiler


@pytest.fixture(params=("nvrtc", "nvcc"))
def tool(request, monkeypatch):
    """The name of a compiler, which is chosen. A test is skipped for one that is not installed."""
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", request.param)
    compiler.find_compiler.cache_clear()
    try:
        compiler.find_compiler()
    except MachineProblem as problem:
        pytest.skip(str(problem))
    yield request.param
    compiler.find_compiler.cache_clear()
