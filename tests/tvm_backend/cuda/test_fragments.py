"""Our fragments for tensor cores multiply what lies in shared memory, by rows or by columns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from autotune.tvm_backend.cuda import compiler

from ...cuda_stand_in.on_cpu import image
from ...cuda_stand_in.on_cpu.launch import FINE, KERNEL, aligned, launch

pytestmark = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

# The second matrix has as many rows as there are terms. Rows in shared memory are longer than they need to be.
SOURCE = """
KERNEL(TYPE* a, TYPE* b, float* c) {
  __shared__ alignas(64) TYPE left[16 * 24];
  __shared__ alignas(64) TYPE right[16 * 24];
  for (int i = threadIdx.x; i < 16 * TERMS; i += 32) left[i / TERMS * 24 + i % TERMS] = a[i];
  for (int i = threadIdx.x; i < TERMS * 16; i += 32) right[i / WIDTH * 24 + i % WIDTH] = b[i];
  __syncthreads();
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, TERMS, ELEMENT, nvcuda::wmma::row_major> x;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, TERMS, ELEMENT, nvcuda::wmma::LAYOUT> y;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, TERMS, float> sum;
  nvcuda::wmma::fill_fragment(sum, 1.0f);
  nvcuda::wmma::load_matrix_sync(x, left, 24);
  nvcuda::wmma::load_matrix_sync(y, right, 24);
  nvcuda::wmma::mma_sync(sum, x, y, sum);
  nvcuda::wmma::store_matrix_sync(c, sum, 16, nvcuda::wmma::mem_row_major);
}
// "16, 16, 8, half" has the source compiled with our fragments
"""


@pytest.mark.parametrize("layout", ["row_major", "col_major"])
@pytest.mark.parametrize(
    ("element", "held", "dtype", "terms"),
    [
        ("half", "half", np.float16, 16),
        ("nv_bfloat16", "nv_bfloat16", ml_dtypes.bfloat16, 16),
        ("half", "float", np.float32, 8),  # TF32
    ],
    ids=["fp16", "bf16", "tf32"],
)
def test_a_warp_multiplies_them(tmp_path, element, held, dtype, terms, layout):
    rng = np.random.default_rng(1)
    a = aligned(16, terms, like=rng.integers(-8, 8, (16, terms)).astype(dtype))
    b = rng.integers(-8, 8, (terms, 16)).astype(dtype)
    stored = np.ascontiguousarray(b if layout == "row_major" else b.T)
    c = aligned(16, 16)
    words = {"KERNEL": KERNEL, "TYPE": held, "ELEMENT": element, "TERMS": terms, "LAYOUT": layout}
    source = SOURCE
    for word, text in {**words, "WIDTH": stored.shape[1]}.items():
        source = source.replace(word, str(text))
    parts = tmp_path / "parts"
    parts.mkdir()
    image.install(parts)
    assert launch(parts, tmp_path, compiler.completed(source), a, stored, c, block=(32, 1, 1)) == FINE
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32) + 1)
