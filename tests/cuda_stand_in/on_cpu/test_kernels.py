"""Kernels in CUDA C compute on a CPU what they would on a GPU, and fail where they would."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from . import image
from .launch import FINE, KERNEL, aligned, launch
from .ptx import UnknownPtx

pytestmark = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

LAUNCH_FAILED = 719


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    image.install(folder)
    return folder


@pytest.fixture
def run(parts, tmp_path):
    """Compiles a source, launches its `kernel` on arrays, and returns the driver's error."""

    return partial(launch, parts, tmp_path)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def test_threads_see_what_others_wrote_to_shared_memory_after_a_barrier(run):
    source = f"""{KERNEL}(int* out) {{
      __shared__ alignas(64) int seen[96];
      seen[threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
      __syncthreads();
      out[blockIdx.x * 96 + threadIdx.x] = seen[95 - threadIdx.x];
    }}"""
    out = zeros(2, 96, dtype=np.int32)
    assert run(source, out, grid=(2, 1, 1), block=(96, 1, 1)) == FINE
    assert np.array_equal(out, [np.arange(95, -1, -1), np.arange(195, 99, -1)])


def test_shared_memory_is_nan_until_it_is_written(run):
    source = f"""{KERNEL}(float* out) {{
      __shared__ float declared[32];
      extern __shared__ __align__(64) uchar asked_for[];
      out[threadIdx.x] = declared[threadIdx.x];
      out[32 + threadIdx.x] = ((float*)asked_for)[threadIdx.x];
    }}"""
    out = zeros(64)
    assert run(source.replace("uchar", "unsigned char"), out, block=(32, 1, 1), shared=128) == FINE
    assert np.isnan(out).all()


def test_a_thread_may_have_512_kib_of_its_own_as_on_a_gpu(run):
    """Kernels that keep hundreds of fragments of matrices do."""
    source = f"""{KERNEL}(int* out) {{
      volatile int own[131072];
      for (int i = 0; i < 131072; i++) own[i] = i;
      out[threadIdx.x] = own[131071 - threadIdx.x];
    }}"""
    out = zeros(32, dtype=np.int32)
    assert run(source, out, block=(32, 1, 1)) == FINE
    assert out[31] == 131040


def test_a_warp_sums_with_shuffles(run):
    source = f"""{KERNEL}(float* x) {{
      float sum = x[threadIdx.x];
      for (int by = 16; by; by >>= 1) sum += __shfl_down_sync(__activemask(), sum, by, 32);
      x[threadIdx.x] = __shfl_sync(0xffffffff, sum, 0, 32);
    }}"""
    x = np.arange(64, dtype=np.float32)
    assert run(source, x, block=(64, 1, 1)) == FINE
    assert np.array_equal(x, np.repeat([np.arange(32).sum(), np.arange(32, 64).sum()], 32))


def test_lanes_that_stay_away_from_their_warp_make_a_launch_fail(run, capfd):
    source = f"""{KERNEL}(float* x) {{
      if (threadIdx.x < 5) __syncthreads();
      else x[threadIdx.x] = __shfl_down_sync(0xffffffff, x[threadIdx.x], 1, 32);
    }}"""
    assert run(source, zeros(32), block=(32, 1, 1)) == LAUNCH_FAILED
    assert "wait for lanes that do not come" in capfd.readouterr().err


def test_halves_are_rounded_after_each_operation(run):
    source = f"""#include <cuda_fp16.h>
    {KERNEL}(half* x) {{ x[2] = x[0] + x[1]; x[3] = x[2] * x[2]; x[4] = (half)(float)x[0] / x[1]; }}"""
    x = np.array([0.1, 3.7, 0, 0, 0], np.float16)
    assert run(source, x, block=(1, 1, 1)) == FINE
    assert np.array_equal(x[2:], [x[0] + x[1], (x[0] + x[1]) ** 2, x[0] / x[1]])


COPY = """
__device__ void copy(void* to, void* from, int predicate) {
  unsigned address = __cvta_generic_to_shared(to);
  __asm__ __volatile__(
    "{\\n"
    " .reg .pred p;\\n"
    " setp.eq.u32 p, %3, 1;\\n"
    " @p cp.async.ca.shared.global [%0], [%1], %2;\\n"
    " @!p st.shared.u32 [%0], {%4};\\n"
    "}\\n"
    :: "r"(address), "l"(from), "n"(4), "r"(predicate), "r"(0)
  );
}
"""


def test_an_asynchronous_copy_is_there_when_its_group_was_waited_for_and_not_before(run):
    source = f"""{COPY}{KERNEL}(float* x, float* early, float* late) {{
      __shared__ float seen[32];
      copy(&seen[threadIdx.x], &x[threadIdx.x], threadIdx.x < 30);
      asm volatile("cp.async.commit_group;" : : );
      early[threadIdx.x] = seen[threadIdx.x];
      asm volatile("cp.async.wait_group 0;" :  :  : "memory");
      late[threadIdx.x] = seen[threadIdx.x];
    }}"""
    x = np.ones(32, np.float32)
    early = zeros(32)
    late = zeros(32)
    assert run(source, x, early, late, block=(32, 1, 1)) == FINE
    assert np.isnan(early[:30]).all()
    assert np.array_equal(late, [1] * 30 + [0, 0])


@pytest.mark.parametrize("layout", ["row_major", "col_major"])
def test_a_warp_multiplies_fragments(run, layout):
    source = f"""#include <mma.h>
    using namespace nvcuda::wmma;
    {KERNEL}(half* a, half* b, float* c) {{
      fragment<matrix_a, 16, 16, 16, half, row_major> left;
      fragment<matrix_b, 16, 16, 16, half, {layout}> right;
      fragment<accumulator, 16, 16, 16, float> sum;
      fill_fragment(sum, 1.0f);
      load_matrix_sync(left, a, 16);
      load_matrix_sync(right, b, 16);
      mma_sync(sum, left, right, sum);
      store_matrix_sync(c, sum, 16, mem_row_major);
    }}"""
    a, b = np.random.default_rng(1).integers(-8, 8, (2, 16, 16)).astype(np.float16)
    c = aligned(16, 16)
    assert run(source, aligned(16, 16, like=a), aligned(16, 16, like=b), c, block=(32, 1, 1)) == FINE
    right = b if layout == "row_major" else b.T
    assert np.array_equal(c, a.astype(np.float32) @ right.astype(np.float32) + 1)


# a is 16 x 16, b is 8 x 16 (its columns are rows here), c is 16 x 8.
MMA = """
{
  __shared__ alignas(64) half a_shared[256];
  __shared__ alignas(64) half b_shared[128];
  for (int i = threadIdx.x; i < 256; i += 32) a_shared[i] = a[i];
  for (int i = threadIdx.x; i < 128; i += 32) b_shared[i] = b[i];
  __syncthreads();
  unsigned p[4], q[2];
  float d[4] = {1, 1, 1, 1};
  unsigned at = __cvta_generic_to_shared(&a_shared[threadIdx.x % 16 * 16 + threadIdx.x / 16 * 8]);
  __asm__ __volatile__(
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    "{%0, %1, %2, %3}, [%4];\\n"
    : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3]) : "r"(at));
  at = __cvta_generic_to_shared(&b_shared[threadIdx.x % 8 * 16 + threadIdx.x / 8 % 2 * 8]);
  __asm__ __volatile__(
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16"
    "{%0, %1}, [%2];\\n"
    : "=r"(q[0]), "=r"(q[1]) : "r"(at));
  PRODUCTS
  for (int i = 0; i < 4; i++)
    c[(threadIdx.x / 4 + i / 2 * 8) * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
}"""
ONE_OF_16 = """
  __asm__ __volatile__(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\\n"
    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
    : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));"""
TWO_OF_8 = """
  for (int half = 0; half < 2; half++)
    __asm__ __volatile__(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};\\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(p[2 * half]), "r"(p[2 * half + 1]), "r"(q[half]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));"""


@pytest.mark.parametrize("products", [ONE_OF_16, TWO_OF_8])
def test_a_warp_multiplies_what_its_lanes_hold_in_registers(run, products):
    source = f"#include <cuda_fp16.h>\n{KERNEL}(half* a, half* b, float* c)" + MMA.replace("PRODUCTS", products)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-8, 8, (rows, 16)).astype(np.float16) for rows in (16, 8))
    c = zeros(16, 8)
    assert run(source, a, b, c, block=(32, 1, 1)) == FINE
    assert np.array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32) + 1)


def test_atomics_lose_nothing(run):
    out = zeros(2, dtype=np.int32)
    source = f"{KERNEL}(int* out) {{ atomicAdd(out, 2); atomicMax(out + 1, (int)threadIdx.x); }}"
    assert run(source, out, block=(256, 1, 1), grid=(3, 1, 1)) == FINE
    assert list(out) == [3 * 256 * 2, 255]


def test_assembly_that_is_not_known_is_refused(parts):
    with pytest.raises(UnknownPtx, match=r"wgmma\.fence\.sync"):
        image.compile_image(f'{KERNEL}() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}', "sm_90", parts)


def test_the_image_says_what_it_is_for(parts):
    from autotune.tvm_backend.cuda import cubin

    made = image.compile_image(f"{KERNEL}() {{ }}", "sm_80", Path(parts))
    assert cubin.read(made).arch == "sm_80"
