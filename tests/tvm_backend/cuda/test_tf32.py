"""Products in TF32: which programs allow it, and that their kernels round and are right."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, topi

from autotune.tvm_backend.cuda import tf32

from ...cuda_stand_in.on_cpu import image


def test_programs_that_multiply_matrices_of_float32_allow_it_and_others_do_not(product_of):
    assert tf32.is_allowed(tf32.allow(product_of(16, 16, 16, "float32")))
    assert not tf32.is_allowed(product_of(16, 16, 16, "float32")), "unless they are asked to"
    assert not tf32.is_allowed(tf32.allow(product_of(16, 16, 16, "float16")))
    x = te.placeholder((1, 16, 8, 8), name="x")
    w = te.placeholder((16, 1, 3, 3), name="w")
    k = te.reduce_axis((0, 16), "k")
    square = te.compute((8, 8), lambda i, j: te.sum(x[0, k, i, j] * x[0, k, i, j], k), name="square")
    for arguments in ([x, square], [x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)]):
        program = tvm.IRModule({"main": te.create_prim_func(arguments).with_attr("global_symbol", "main")})
        assert not tf32.is_allowed(tf32.allow(program))


# Prints what a kernel makes of a number that TF32 cannot hold, times one.
SCRIPT = """
import sys
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import numpy as np
import tvm
from tvm import te
from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.search.design_space import tune_context
from autotune.tvm_backend.target import resolve_target, tvm_target

description = resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description
target = tvm_target(description)
a = te.placeholder((32, 32), name="a")
b = te.placeholder((32, 32), name="b")
k = te.reduce_axis((0, 32), "k")
c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
program = tf32.allow(tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")}))

def any_schedule():
    for seed in range(1, 100):
        context = tune_context(program, target, seed=seed)
        for schedule in context.generate_design_space():
            if PREFIX in str(schedule.trace):
                schedule.enter_postproc()
                if all(rule.apply(schedule) for rule in context.space_generator.postprocs):
                    return schedule

build_library(any_schedule().mod, target, sys.argv[1])
main = tvm.runtime.load_module(sys.argv[1])["main"]
verify.Verifier(verify.compute(program, description["host"]), tvm.cuda(0)).check(main)
one = np.eye(32, dtype="float32")
matrices = [one * np.float32(1 + 3 * 2.0**-12), one, np.zeros((32, 32), "float32")]
tensors = [tvm.runtime.tensor(item, tvm.cuda(0)) for item in matrices]
main(*tensors)
print((tensors[2].numpy()[5, 5] - 1) * 2**12)
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
def test_a_kernel_is_right_and_rounds_its_operands_to_the_nearest(computing_gpu, tmp_path):
    done = computing_gpu.python(SCRIPT, tmp_path / "kernel.so")
    assert done.stdout.strip() == "4.0", done.stderr
