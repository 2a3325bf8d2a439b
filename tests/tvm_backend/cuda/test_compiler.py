"""What compiles the code that TVM generates does so exactly."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend.cuda import compiler, cubin

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) ratio(float* x) {
  x[threadIdx.x] = x[threadIdx.x] / x[threadIdx.x + 128];
}
"""


PACKING = """
#include <cstdio>
#define __device__
struct uint4 { unsigned x, y, z, w; };
typedef short half;
%s
int main() {
  half h[8] = {1, 2, 3, 4, 5, 6, 7, -8};
  uint4 packed = make_uint4(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
  for (int i = 0; i < 8; ++i) std::printf("%%d ", reinterpret_cast<half*>(&packed)[i]);
}
"""


def gather(dtype, lanes):
    """A schedule whose threads each read `lanes` numbers that lie three apart."""
    from tvm import s_tir, te

    x = te.placeholder((4096,), dtype, name="x")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((1024,), lambda i: x[i * 3], name="y")]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    block, thread, vector = schedule.split(loop, [None, 32, lanes])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(vector)
    return schedule.mod


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_thread_may_gather_eight_halves(dtype, tool, tmp_path):
    from autotune.tvm_backend.kernels.build_kernel import build_library
    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.target import resolve_target, tvm_target

    load_tvm("cuda")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    build_library(gather(dtype, 8), target, tmp_path / "kernel.so")
    assert [code.arch for code in cubin.find((tmp_path / "kernel.so").read_bytes())] == ["sm_90"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_eight_halves_are_packed_in_their_order(tmp_path):
    (tmp_path / "packing.cpp").write_text(PACKING % compiler.EIGHT_HALVES)
    subprocess.run(["g++", "-o", "packing", "packing.cpp"], cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "packing"], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["1", "2", "3", "4", "5", "6", "7", "-8"]


def test_a_quotient_is_rounded_as_on_a_cpu(tool):
    """With fast math, there is no way for operands that the quick one rounds wrongly."""
    import tvm

    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        code = compiler.compile_source(SOURCE, "sm_90")
    assert cubin.read(code).arch == "sm_90"
    assert b"div_rn" in code


def test_an_unknown_way_to_compile_is_refused_with_those_there_are(monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "ptx")
    compiler.find_compiler.cache_clear()
    with pytest.raises(MachineProblem, match="TVM_CUDA_COMPILE_MODE is 'ptx'; set it to nvrtc or nvcc, or not at all$"):
        compiler.find_compiler()


def test_what_calls_the_pipeline_has_it_and_names_one_block():
    source = "__global__ void __launch_bounds__(128) f() { autotune::pipeline::floor_div(1, 2); }"
    assert "struct Pipeline {" in compiler.completed(source)
    assert compiler.completed(source).endswith(source.replace("(128)", "(128, 1)"))
    plain = "__global__ void __launch_bounds__(128) f() {}"
    assert compiler.completed(plain) == compiler.EIGHT_HALVES + plain
