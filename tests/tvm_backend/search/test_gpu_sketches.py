"""The sketches of a GPU: which ones a product has, by its type and by the architecture."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.search.design_space import tune_context
from autotune.tvm_backend.target import resolve_target, tvm_target

WMMA = "wmma_sync"


def sketches(program, gpu):
    """The instructions of each sketch, as text."""
    return [str(schedule.trace) for schedule in tune_context(program, gpu).generate_design_space()]


def of_arch(arch):
    return tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{arch}"}}', 1).description)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [(64, 64, 128), (16, 64, 256)], ids=["many rows", "few rows"])
def test_products_of_sixteen_bits_have_pipelines_alone(product_of, gpu, dtype, sizes):
    made = sketches(product_of(*sizes, dtype), gpu)
    assert made and all(PREFIX in text and WMMA not in text for text in made)


def test_products_of_floats_have_them_besides_the_usual_ones_where_they_may_be_rounded(product_of, gpu):
    usual = sketches(product_of(64, 64, 128, "float32"), gpu)
    both = sketches(tf32.allow(product_of(64, 64, 128, "float32")), gpu)
    assert not any(PREFIX in text for text in usual)
    assert [text for text in both if PREFIX not in text] == usual
    assert len(both) > len(usual)


def test_before_sm_80_products_of_fp16_have_metaschedules_own(product_of):
    made = sketches(product_of(64, 64, 128, "float16"), of_arch("sm_75"))
    assert made and all(WMMA in text for text in made)


def test_before_sm_80_no_tensor_core_multiplies_bf16(product_of):
    made = sketches(product_of(64, 64, 128, "bfloat16"), of_arch("sm_75"))
    assert not any(PREFIX in text or WMMA in text for text in made)


def test_threads_share_long_sums_only(as_program, gpu):
    """A pooling of 3 by 3 has nine terms, which a warp would be wasted on."""
    from tvm import te, topi

    def shares(width, window):
        x = te.placeholder((1, 8, width, width), name="x")
        pooled = topi.nn.pool2d(x, (window, window), (window, window), (1, 1), (0, 0, 0, 0), "max")
        return sum("[4, 8, 16" in text for text in sketches(as_program(x, pooled), gpu))

    assert shares(36, 3) == 0
    assert shares(36, 12) > 0
