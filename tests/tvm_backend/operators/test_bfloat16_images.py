"""Every schedule of a product in bfloat16 computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.intrinsics.bfloat16 import numbers, rounded
from autotune.tvm_backend.isa.amx import AmxProduct
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.operators.bfloat16_images import product_program, sums_of_convolution
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.propose import by_hand
from tests.tvm_backend.intrinsics.test_amx_and_vector_tiles import assert_schedules_agree
from tests.tvm_backend.isa.dots import DPBF16PS, MULTIPLY_ADD

from ..quantised_nets import cpu_target

_FLAGS = {DPBF16PS.name: "avx512_bf16", MULTIPLY_ADD.name: "avx2"}
_CPUS = {DPBF16PS.name: "cooperlake", MULTIPLY_ADD.name: "x86-64-v3"}
_CLOSE = 2**-8  # sums in another order may be rounded to the next element


def convolution(data, weight, window, instructions):
    operands = [te.placeholder(shape, "uint16", name) for shape, name in ((data, "data"), (weight, "weight"))]
    sums = sums_of_convolution(*operands, window, instructions)
    program = product_program(operands, sums, lambda *at: te.max(sums[at], te.const(0, "float32")), "uint16")
    return tvm.IRModule({"main": program.with_attr("global_symbol", "main")})


def run(module, target):
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, item.ty.shape)) for item in module["main"].params]
    tensors = [tvm.runtime.tensor(rounded(rng.standard_normal(shape))) for shape in shapes]
    tvm.tirx.build(module, target=target, pipeline=pipeline(target))["main"](*tensors)
    return numbers(tensors[-1].numpy())


def assert_close(result, expected):
    assert np.abs(result - expected).max() <= _CLOSE * expected.max()


@pytest.mark.parametrize("dot", (DPBF16PS, MULTIPLY_ADD), ids=lambda dot: dot.name)
def test_the_schedule_by_hand_and_sampled_ones_compute_the_same(target, dot):
    here = cpu_target(_CPUS[dot.name], _FLAGS[dot.name])
    shapes = (1, 6, 8, 2, 16), (2, 3, 3, 2, 8, 16, 2)
    module = convolution(*shapes, Window((6, 8), padding=(1, 1, 1, 1)), Instructions(dot.name))
    assert_schedules_agree(module, here, dot.name, run, assert_close)


_TILED = {
    "a 3x3 convolution": (((1, 6, 8, 2, 16), (2, 3, 3, 2, 8, 16, 2)), Window((6, 8), padding=(1, 1, 1, 1))),
    "few channels": (((1, 9, 17, 1, 4), (2, 3, 3, 1, 2, 16, 2)), Window((4, 8), (2, 2))),
    "a dilated one": (((2, 8, 10, 3, 16), (2, 3, 1, 3, 8, 16, 2)), Window((4, 10), dilation=(2, 1))),
    "rows": (((1, 1, 28, 4, 16), (2, 1, 1, 4, 8, 16, 2)), Window((1, 28))),
}


@pytest.mark.parametrize("name", _TILED)
def test_tiles_compute_what_vectors_do(target, name):
    here = cpu_target("sapphirerapids", "amx_bf16")
    shapes, window = _TILED[name]
    module = convolution(*shapes, window, Instructions(DPBF16PS.name, tiles=AmxProduct))
    expected = run(module, here)
    chosen = by_hand(module)
    assert "autotune_amx" in str(chosen.trace)
    (schedule,) = (item.sch for item in replay([chosen], module, here))
    assert_close(run(schedule.mod, here), expected)


def test_a_name_says_the_elements_of_a_tile():
    product = AmxProduct(2, 14, 2, 3, 3, 4, 16, 1, 1, 1, 2)
    assert AmxProduct.of(product.name) == product
    assert AmxProduct.of(product.name + "_2") is None
    assert AmxProduct.of("autotune_amx_2_14_2_3_3_4_16_1_1_1_3") is None
