"""On a real GPU: a kernel is compiled, launched, timed and checked, and an illegal access costs one process."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine.gpus import cuda_devices
from autotune.processes.isolate import isolated
from autotune.tvm_backend.load import load_tvm

if not cuda_devices():
    pytest.skip("no GPU", allow_module_level=True)
load_tvm(
    "cuda"
)  # before anything else imports TVM: that would load torch, which opens the driver, and then no fork can

from autotune.tvm_backend.kernels.build_kernel import build_library  # noqa: E402
from autotune.tvm_backend.kernels.gpu_check import check_gpu  # noqa: E402
from autotune.tvm_backend.kernels.time_kernel import Timing, open_device  # noqa: E402
from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner  # noqa: E402
from autotune.tvm_backend.target import resolve_target  # noqa: E402

SIZE = 1 << 20
KERNEL = Path(__file__).parents[1] / "tvm_backend/cuda/pipeline_kernel.py"


@pytest.fixture(scope="module")
def target():
    return {**resolve_target("cuda", threads=1).description, "arch": cuda_devices()[0].arch}


def copy_of(target, path, step):
    """A library whose kernel reads `step` elements apart, out of its argument's bounds for a large one."""
    import tvm
    from tvm import s_tir, te

    x = te.placeholder((SIZE,), "float32", name="x")
    y = te.compute((SIZE,), lambda i: x[i * step], name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, 256])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    build_library(schedule.mod, tvm.target.Target(target), path)
    return path


ARGS = [["TENSOR", "float32", [SIZE]]] * 2


def test_a_good_kernel_is_right_on_every_gpu(target):
    for gpu in cuda_devices():
        checked = check_gpu({**target, "arch": gpu.arch}, gpu)
        assert checked.launch_us is not None and checked.launch_us > 0


def test_an_illegal_access_is_blamed_on_the_kernel_that_made_it(target, tmp_path):
    good = copy_of(target, tmp_path / "good.so", 1)
    bad = copy_of(target, tmp_path / "bad.so", 1 << 40)

    def prepare():
        cuda_devices()[0].take()
        runner = GpuRunner(open_device("cuda"), Timing(1, 2, 1), spin_up_ms=50)
        return lambda library: runner.time(library, ARGS, None)

    outcomes = list(isolated([good, bad, good], prepare, limit_s=60, retried=("crash",)))
    assert [outcome.kind for _, outcome in outcomes] == ["ok", "crash", "ok"]
    assert "illegal" in outcomes[1][1].reason
    first, last = (statistics.median(outcomes[index][1].value) for index in (0, 2))
    assert all(math.isfinite(time) and time > 0 for time in (first, last))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("kind", ["product", "wide", "convolution", "colours", "batched", "turned"])
def test_tensor_cores_compute_what_numpy_does(tmp_path, kind, dtype):
    if int(cuda_devices()[0].arch.removeprefix("sm_")) < 80:
        pytest.skip("its tensor cores have no pipeline")
    command = [sys.executable, str(KERNEL), str(tmp_path), f"{kind},{dtype},64,64,128,4,3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True "), done.stderr
