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


FP16 = ("half", "half", np.float16, 16)
BF16 = ("nv_bfloat16", "nv_bfloat16", ml_dtypes.bfloat16, 16)
TF32 = ("half", "float", np.float32, 8)
BETWEEN = 1 + 3 * 2.0**-12  # which is no number of these types; the nearest one follows
NEAREST = {np.float16: 1 + 2.0**-10, ml_dtypes.bfloat16: 1.0, np.float32: 1 + 2.0**-10}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(BF16, "row_major", id="bf16-rows"),
        pytest.param(TF32, "col_major", id="tf32-columns"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((FP16, "row_major"), (FP16, "col_major"))),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((BF16, "col_major"), (TF32, "row_major"))),
    ],
)
def test_a_warp_multiplies_them_rounded_to_the_nearest(tmp_path, kind, layout):
    element, held, dtype, terms = kind
    rng = np.random.default_rng(1)
    numbers = rng.integers(-8, 8, (16, terms)).astype(np.float32)
    numbers[5] = BETWEEN
    a = aligned(16, terms, like=numbers.astype(dtype))
    numbers[5] = NEAREST[dtype]
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
    assert np.array_equal(c, numbers @ b.astype(np.float32) + 1)
