"""Kernels with the pipeline of tensor cores compute what NumPy does, on shapes that fill no tile."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.cuda.tensor_pipeline import fits, marked, write_pipelines
from autotune.tvm_backend.search.design_space import tune_context

from ...cuda_stand_in.on_cpu import image

on_cpu = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")

SCRIPT = Path(__file__).with_name("pipeline_kernel.py").read_text()
ELEMENTS = {"float16": "Fp16", "bfloat16": "Bf16", "float32": "Tf32", "int8": "Int8"}
SMALL = (64, 32, 64, 2, 3)  # rows, columns, threads, steps, stages
LARGE = (64, 64, 128, 4, 5)
TILES = (
    dict.fromkeys(("product", "convolution", "turned"), SMALL)
    | dict.fromkeys(("wide", "colours", "batched"), LARGE)
    | {"wide_indices": (32, 32, 64, 2, 3)}
)
QUICK = [("product", "int8"), ("convolution", "float16"), ("wide_indices", "float16")]


@on_cpu
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(QUICK, id="of each form"),
        *(pytest.param([(kind, dtype) for dtype in ELEMENTS], id=kind, marks=pytest.mark.slow) for kind in TILES),
    ],
)
def test_a_kernel_computes_what_numpy_does(computing_gpu, tmp_path, cases):
    words = [",".join(map(str, (*case, *TILES[case[0]]))) for case in cases]
    done = computing_gpu.python(SCRIPT, tmp_path, *words)
    assert done.stdout.splitlines() == [f"True {ELEMENTS[dtype]}" for _, dtype in cases], done.stderr


@pytest.fixture(scope="module")
def scheduled(product_of, gpu):
    """The scheduled program of a product, in tiles that its warps can share."""
    program = product_of(70, 45, 51, "float16")
    made = (item for seed in range(1, 100) for item in tune_context(program, gpu, seed=seed).generate_design_space())
    pipelines = (item.mod for item in made if PREFIX in str(item.trace))
    return next(module for module in pipelines if marked(module)[0][1].warps is not None)


def test_calls_take_the_place_of_the_marked_blocks(scheduled):
    before, after = (str(program) for program in (scheduled["main"], write_pipelines(scheduled["main"])))
    assert "autotune::pipeline::" not in before
    assert PREFIX in before and PREFIX not in after
    assert after.count("autotune::pipeline::Pipeline<") == after.count("autotune::pipeline::take<") == 1


def test_what_is_not_marked_stays_as_it_is(product_of):
    program = product_of(70, 45, 51, "float16")
    assert write_pipelines(program["main"]).same_as(program["main"])
    assert marked(program) == []
    assert fits(program, 0)


def test_a_marked_block_says_what_it_multiplies_and_in_which_tiles(scheduled):
    ((product, tiles),) = marked(scheduled)
    assert (product.element.dtype, product.extents) == ("float16", {"row": 70, "column": 45, "term": 51})
    assert fits(scheduled, tiles.shared_bytes()) is tiles.fits(tiles.shared_bytes())
    assert not fits(scheduled, tiles.shared_bytes() - 1)
