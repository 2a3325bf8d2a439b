"""What ptxas makes of the pipeline: the inner loop is found in a listing, and a kernel has no stack."""

from __future__ import annotations

import pytest

from autotune.errors import MachineProblem
from autotune.tvm_backend.cuda import compiler, tensor_pipeline
from autotune.tvm_backend.load import load_for_tuning

# A loop whose head has a barrier, another one without products, and what lies between.
LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0030*/                   HMMA.16816.F32 R12, R4, R7, R12 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/              @P0  BRA `(.L_x_1) ;
.L_x_2:
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/                   LDS R3, [R2] ;
        /*0080*/              @!P1 BRA `(.L_x_2) ;
        /*0090*/                   EXIT ;
"""


@pytest.fixture
def script(load_script):
    load_for_tuning("cuda", ())
    return load_script("pipeline_table")


def test_the_inner_loop_is_the_one_that_multiplies_most(script):
    loop = script.inner_loop(LISTING)
    assert (loop.products, dict(loop.counts)) == (2, {"LDSM": 1, "HMMA": 2, "BAR": 1, "BRA": 1})


def test_a_program_has_only_the_tiles_that_it_is_large_enough_for(script):
    from check_schedules import cuda_target

    _, target = cuda_target()
    program = script.product(512, 64, 64, "float16")
    assert script.schedule_of(program, target, (64, 64, 128, 2, 3)) is not None
    assert script.schedule_of(program, target, (64, 256, 128, 2, 3)) is None


@pytest.mark.parametrize(
    ("kind", "steps", "fits"),
    [("convolution_fp16", 2, True), ("convolution_fp16", 4, False), ("product_fp16", 4, True)],
)
def test_a_convolution_that_copies_more_than_its_registers_allow_is_refused(script, kind, steps, fits):
    """With 128 sums of a thread, and four steps of a tile, ptxas spilled 24 bytes of it."""
    from check_schedules import cuda_target

    _, target = cuda_target()
    schedule = script.schedule_of(script.KINDS[kind](), target, (128, 128, 128, steps, 3))
    assert tensor_pipeline.fits(schedule.mod, 227 << 10) is fits


@pytest.mark.slow
def test_a_kernel_spills_nothing_and_multiplies_four_times_a_load(script):
    try:
        compiler.find_compiler()
        disassembler = script.find_disassembler()
    except (MachineProblem, SystemExit) as problem:
        pytest.skip(str(problem))
    from check_schedules import cuda_target

    _, target = cuda_target()
    _, stack, _, _, _, products, loads, *_ = script.row("product_fp16", (128, 128, 128, 2, 3), target, disassembler)
    assert (stack, products, loads) == (0, 64, 16)
    _, (_, stack, _, _, _, products, *_) = script.attention_row(64, target, disassembler)
    assert (stack, products) == (0, 64), "half of them of queries and keys, half of weights and values"
