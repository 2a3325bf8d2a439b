"""How kernels are timed on a GPU, and what is said of an error of CUDA, in one line."""

from __future__ import annotations

import json

import pytest

from autotune.errors import WorkerError
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing
from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner, said_by_cuda

from ...cuda_stand_in import StandIn
from ...cuda_stand_in.on_cpu import image

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


# Times a kernel as it is, and one after which its library waits for the GPU, which no graph can record.
SCRIPT = """
import json
import sys
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import tvm
from tvm import s_tir, te
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.kernels.time_kernel import Timing, open_device
from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner
from autotune.tvm_backend.target import resolve_target, tvm_target

x = te.placeholder((32,), "float32", name="x")
schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((32,), lambda i: x[i] * 2.0, name="y")]))
schedule.bind(schedule.get_loops(schedule.get_sblock("y"))[0], "threadIdx.x")
target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
build_library(schedule.mod, target, sys.argv[1])

class Waiting:
    def __init__(self, module):
        self.time_evaluator = module.time_evaluator
        self.main = module["main"]

    def __getitem__(self, name):
        return lambda *tensors: (self.main(*tensors), tvm.cuda(0).sync())

class WaitingRunner(GpuRunner):
    def load(self, library):
        return Waiting(super().load(library))

args = [["TENSOR", "float32", [32]]] * 2
for kind in GpuRunner, WaitingRunner:
    print(json.dumps(kind(open_device("cuda"), Timing(1, 2, 1)).time(sys.argv[1], args, None)))
print(json.dumps(GpuRunner(open_device("cuda"), Timing(1, 2, 1)).time(sys.argv[1], args, 0.1)))
"""


@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
def test_a_kernel_is_timed_and_not_its_launch_unless_it_cannot_be_recorded(computing_gpu, tmp_path):
    """On a GPU where a kernel takes a microsecond, and a launch fifty: of a kernel, or of a graph of a hundred."""
    stand_in = StandIn.make(computing_gpu.libraries, tmp_path / "gpus")
    stand_in.fail("far")
    done = stand_in.python(SCRIPT, tmp_path / "kernel.so")
    assert done.returncode == 0, done.stderr
    recorded, launched, given_up = map(json.loads, done.stdout.splitlines())
    assert recorded == pytest.approx([1.5, 1.5])
    assert launched == pytest.approx([51, 51])
    assert given_up == pytest.approx([51], abs=0.1), "it is far slower than the best"
