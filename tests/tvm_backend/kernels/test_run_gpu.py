"""What is said of an error of CUDA, in one line."""

from __future__ import annotations

import pytest

from autotune.errors import WorkerError
from autotune.tvm_backend.kernels.run import Runner, Timing
from autotune.tvm_backend.kernels.run_gpu import GpuRunner, said_by_cuda

LAUNCH = """InternalError: CUDALaunch Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
 grid=(1,1,1),  block=(1024,1,1)
"""
LOADING = "CUDAError: cuModuleLoadData(&m, data) failed with error: CUDA_ERROR_NO_BINARY_FOR_GPU"
ACCESS = "  File a.cc\nRuntimeError: CUDA Runtime Error: cudaErrorIllegalAddress (700): an illegal memory access"


class Well:
    """A device whose context is fine."""

    def sync(self):
        """Nothing runs."""


@pytest.mark.parametrize(("text", "said"), [(LAUNCH, "RESOURCES"), (LOADING, "FOR_GPU"), (ACCESS, "memory access")])
def test_the_line_that_names_the_error_is_found(text, said):
    assert said_by_cuda(RuntimeError(text)).endswith(said)


def test_errors_that_are_not_of_cuda_are_left_as_they_are():
    assert said_by_cuda(RuntimeError("Check failed: CUDA was meant\nlast line")) == ""


def test_a_launch_that_fails_is_an_error_in_one_line(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError(LAUNCH)

    monkeypatch.setattr(Runner, "load", fail)
    with pytest.raises(WorkerError, match=r"^InternalError: CUDALaunch Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"):
        GpuRunner(Well(), Timing(1, 1, 1)).time(tmp_path, [], None)
