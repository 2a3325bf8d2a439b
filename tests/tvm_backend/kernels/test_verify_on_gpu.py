"""Kernels on a GPU are run more than once, between guard areas: on a GPU that computes on the CPU."""

from __future__ import annotations

import pytest

from ...cuda_stand_in.on_cpu import image

pytestmark = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

# `stray` writes one of its elements beyond the last; `tardy` is wrong from its second run on.
SCRIPT = """
import sys
import unittest.mock
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import tvm
from tvm import s_tir, te
from autotune.errors import WrongResult
from autotune.tvm_backend.cuda import compiler
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.target import resolve_target, tvm_target

description = resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description

x = te.placeholder((100,), "float32", name="x")
function = te.create_prim_func([x, te.compute((100,), lambda i: x[i] * 2.0, name="y")])
program = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
truth = verify.compute(program, description["host"])
schedule = s_tir.Schedule(program)
schedule.bind(schedule.get_loops(schedule.get_sblock("y"))[0], "threadIdx.x")
runs = 0

def build(index):
    # a kernel that writes its results to another place
    compile_source = compiler.compile_source
    wanted = lambda source, arch: compile_source(source.replace("y_ptr[((int)threadIdx.x)]", f"y_ptr[{index}]"), arch)
    with unittest.mock.patch.object(compiler, "compile_source", wanted):
        build_library(schedule.mod, tvm_target(description), f"{sys.argv[1]}/{len(index)}.so")
    return tvm.runtime.load_module(f"{sys.argv[1]}/{len(index)}.so")["main"]

right = build("threadIdx.x")
stray = build("threadIdx.x == 99 ? 100 : threadIdx.x")

def tardy(x, y):
    global runs
    runs += 1
    right(x, y if runs == 1 else x)

for main in (right, stray, tardy):
    try:
        verify.Verifier(truth, tvm.cuda(0)).check(main)
        print("right")
    except WrongResult as problem:
        print(problem)
"""


def test_guard_areas_and_later_runs_show_what_one_run_does_not(computing_gpu, tmp_path):
    done = computing_gpu.python(SCRIPT, tmp_path)
    right, stray, tardy = done.stdout.splitlines() or [done.stderr] * 3
    assert right == "right", done.stderr
    assert stray == "wrote beyond the bounds of argument 1"
    assert tardy == "changed argument 0, which is an input"
