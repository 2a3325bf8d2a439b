"""What is tried before a candidate is blamed: on a stand-in for a GPU, in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from autotune.tvm_backend.cuda import runtime

from ...cuda_stand_in import StandIn, compile_libraries

pytestmark = pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")

SCRIPT = """
import json, sys
from autotune.errors import MachineProblem
from autotune.machine.gpus import cuda_devices
from autotune.tvm_backend.load import load_tvm

load_tvm("cuda")
from autotune.tvm_backend.kernels import gpu_probe  # now, for PyTorch would bring a newer runtime of CUDA

for fault, arch, shape, answers in json.loads(sys.argv[1]):
    open(sys.argv[2] + "/fault", "w").write(fault)
    target = {"kind": "cuda", "arch": arch, "host": {"kind": "llvm"}}
    try:
        if cuda_devices():
            found = gpu_probe.check_gpu(target, cuda_devices()[0], arguments=[("float32", shape)], answers=answers)
        else:
            found = gpu_probe.check_build(target)
        print("ok", found.compiler.tool, found.launch_us)
    except MachineProblem as problem:
        print(problem)
"""


def probe(folder, cases, **environment):
    command = [sys.executable, "-c", SCRIPT, json.dumps(cases), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_gpu_is_tried_and_what_is_wrong_with_it_is_said_in_one_line(tmp_path):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    stand_in = StandIn.make(compile_libraries(libraries), tmp_path / "gpus")
    good, *bad = probe(
        stand_in.folder,
        [
            ("", "sm_90", [16], False),
            ("", "sm_90", [16], True),
            ("", "sm_80", [16], False),
            ("lost", "sm_90", [16], False),
            ("memory", "sm_90", [1 << 20], False),
        ],
        **stand_in.environment(),
    )
    assert good.startswith("ok ") and float(good.split()[2]) > 0
    known_good = "a kernel that is known to be good fails on cuda:0 (Stand-In 90): "
    assert bad[0] == f"{known_good}its results are wrong; look at it with nvidia-smi"
    assert bad[1].startswith(known_good), "an sm_80 cubin does not run on sm_90"
    assert bad[2].startswith(known_good)
    assert "its memory is full: 4 MiB are needed" in bad[3]


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="no nvidia-ml-py")
def test_a_gpu_for_one_process_is_refused_before_anything_is_built(tmp_path):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    stand_in = StandIn.make(compile_libraries(libraries), tmp_path / "gpus")
    (stand_in.folder / "mode").write_text("3")
    (said,) = probe(stand_in.folder, [("", "sm_90", [16], False)], **stand_in.environment())
    assert said.startswith("cuda:0 (Stand-In 90) is in compute mode EXCLUSIVE_PROCESS")
    assert said.endswith("run: nvidia-smi -i 0 -c DEFAULT")


def test_without_a_gpu_the_known_good_kernel_is_compiled(tmp_path):
    """Where the driver is missing, a placeholder takes its place: nothing is launched."""
    assert probe(tmp_path, [("", "sm_75", [16], True), ("", "sm_120", [16], True)], PATH=os.environ["PATH"]) == [
        f"ok {tool} None" for tool in ("nvrtc" if importlib.util.find_spec("cuda") else "nvcc",) * 2
    ]


def test_without_a_compiler_the_error_says_what_to_install(tmp_path):
    (said,) = probe(tmp_path, [("", "sm_90", [16], True)], TVM_CUDA_COMPILE_MODE="ptx")
    assert said == "TVM_CUDA_COMPILE_MODE is 'ptx'; set it to nvrtc or nvcc, or not at all"
