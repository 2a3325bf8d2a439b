"""What is tried before a candidate is blamed: on a stand-in for a GPU, in a process of its own."""

from __future__ import annotations

import importlib.util
import json

import pytest

from autotune.tvm_backend.cuda import compiler, runtime
from autotune.tvm_backend.kernels import gpu_check

from ...cuda_stand_in import StandIn, compile_libraries

pytestmark = pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")

SCRIPT = """
import json, sys
from autotune.errors import MachineProblem
from autotune.machine.gpus import cuda_devices
from autotune.tvm_backend.load import load_tvm

load_tvm("cuda")
from autotune.tvm_backend.kernels import gpu_check  # now, for PyTorch would bring a newer runtime of CUDA

for fault, arch, elements, answers, mode in json.loads(sys.argv[1]):
    for name, text in {"fault": fault, "mode": mode}.items():
        with open(f"{sys.argv[2]}/{name}", "w") as file:
            file.write(text)
    target = {"kind": "cuda", "arch": arch, "host": {"kind": "llvm"}}
    arguments = [("float32", [elements])]
    try:
        print("ok", gpu_check.check_gpu(target, cuda_devices()[0], arguments=arguments, answers=answers).launch_us)
    except MachineProblem as problem:
        print(problem)
"""


def test_a_gpu_is_tried_and_what_is_wrong_with_it_is_said_in_one_line(made_once, tmp_path):
    stand_in = StandIn.make(made_once("stand_in", compile_libraries), tmp_path / "gpus")
    cases = [
        ("", "sm_90", 16, False, "0"),
        ("", "sm_90", 16, True, "0"),
        ("lost", "sm_90", 16, False, "0"),
        ("memory", "sm_90", 1 << 20, False, "0"),
        ("", "sm_90", 16, False, "3"),
    ]
    done = stand_in.python(SCRIPT, json.dumps(cases), stand_in.folder)
    assert done.returncode == 0, done.stderr
    good, *bad = done.stdout.splitlines()
    assert good.startswith("ok ") and float(good.split()[1]) > 0
    known_good = "a kernel that is known to be good fails on cuda:0 (Stand-In 90): "
    assert bad[0] == f"{known_good}its results are wrong; look at it with nvidia-smi"
    assert bad[1].startswith(known_good)
    assert "its memory is full: 4 MiB are needed" in bad[2]
    if importlib.util.find_spec("pynvml") is not None:
        assert bad[3].startswith("cuda:0 (Stand-In 90) is in compute mode EXCLUSIVE_PROCESS")
        assert bad[3].endswith("run: nvidia-smi -i 0 -c DEFAULT")


def test_without_a_gpu_the_known_good_kernel_is_compiled(gpu):
    """Where the driver is missing, a placeholder takes its place: nothing is launched."""
    target = {"kind": "cuda", "arch": "sm_75", "host": {"kind": "llvm"}}
    assert gpu_check.check_build(target) == gpu_check.Probed(compiler.find_compiler(), None)
