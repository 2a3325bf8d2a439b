"""Every sampled tile of an integer product computes the same, and the schedule by hand is one of the space."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.isa.amx import AmxProduct
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.avx512 import AVX512
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.operators.chunked_product import ChunkedProduct, Grouping
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import BYTES
from autotune.tvm_backend.operators.integer_product import DepthwiseProduct, product_program
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import by_hand
from tests.tvm_backend.isa.dots import DOTS

from ..quantised_nets import cpu_target

_FLAGS = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni", "avx512vl": "avx512vl", "avx512vbmi": "avx512vbmi"}
_CPUS = {"avx512vnni": "icelake-server", "avxvnni": "alderlake", "avx2": "x86-64-v3"}
_VECTOR_REGISTERS = 32  # of AVX-512
_CONSTANTS = [((1,), "uint8"), ((2, 16), "float32"), ((2, 16), "int32"), ((3,), "float32")]


def convolution(dot, *, tiles=None):
    operands = [((1, 6, 8, 2, 16), "uint8"), ((2, 3, 3, 2, 4, 16, 4), "int8"), *_CONSTANTS]
    window = Window((6, 8), padding=(1, 1, 1, 1))
    return product_program(
        ChunkedProduct(BYTES, window, Instructions(dot.name, tiles), Grouping(0, 0, 2)), operands, "uint8"
    )


def depthwise(dot):
    operands = [((1, 6, 8, 2, 16), "uint8"), ((2, 3, 1, 16, 4), "int8"), *_CONSTANTS]
    window = Window((3, 4), (2, 2), (1, 1, 1, 1))
    return product_program(DepthwiseProduct(window, Instructions(dot.name)), operands, "uint8")


def operands_of(program):
    rng = np.random.default_rng(0)
    draw = {
        "uint8": lambda shape: rng.integers(0, 256, shape),
        "int8": lambda shape: rng.integers(-64, 64, shape),
        "int32": lambda shape: rng.integers(-999, 999, shape),
        "float32": lambda shape: rng.uniform(0.001, 0.002, shape) if len(shape) > 1 else np.array([7.0, 3.0, 250.0]),
    }
    parameters = [(str(item.ty.dtype), tuple(map(int, item.ty.shape))) for item in program.params]
    return [tvm.runtime.tensor(draw[dtype](shape).astype(dtype)) for dtype, shape in parameters]


def run(module, target):
    tensors = operands_of(module["main"])
    tvm.tirx.build(module, target=target, pipeline=pipeline(target))["main"](*tensors)
    return tensors[-1].numpy()


def assert_schedules_agree(module, target, name, compute, assert_same):
    """The schedule by hand is one of the space, and it and each sketch compute the same, with an intrinsic.

    Args:
        module: A program.
        target: What it is compiled for.
        name: The intrinsic.
        compute: What a module computes on a target.
        assert_same: Compares two results.
    """
    expected = compute(module, target)
    chosen = by_hand(module)
    assert name in str(chosen.trace)
    (schedule,) = (item.sch for item in replay([chosen], module, target))
    assert_same(compute(schedule.mod, target), expected)
    knobs = Knobs(module, target)
    assert knobs.find(chosen.trace) is not None
    assert knobs.sketches()
    for sketch in range(len(knobs.sketches())):
        applied = knobs.apply((sketch, *(len(knob.values) // 2 for knob in knobs.space.knobs[1:])))
        assert name in str(applied.schedule.trace)
        assert_same(compute(applied.schedule.mod, target), expected)


@pytest.mark.parametrize("make, dot", [*((convolution, dot) for dot in DOTS), (depthwise, AVX512.depthwise)])
def test_the_schedule_by_hand_and_sampled_ones_compute_the_same(target, make, dot):
    flags = {_FLAGS.get(feature, feature) for feature in dot.features}
    if not flags <= cpu_flags():
        pytest.skip(f"this CPU lacks {', '.join(flags - cpu_flags())}")
    here = tvm.target.Target({"kind": "llvm", "mcpu": _CPUS[dot.features[0]], "num-cores": 2})
    program, _ = make(dot)
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    expected = run(module, here)
    assert 0 < expected.min() < expected.max() <= 250
    assert_schedules_agree(module, here, dot.name, run, np.testing.assert_array_equal)


@pytest.mark.parametrize("extents", [(7, 7, 8), (14, 14, 16), (1, 49, 32), (5, 3, 12)])
def test_the_sums_and_the_weights_of_the_tile_by_hand_fit_in_the_registers(target, extents):
    height, width, chunks = extents
    constants = [(((chunks, 16) if shape == (2, 16) else shape), dtype) for shape, dtype in _CONSTANTS]
    operands = [((1, height, width, 2, 16), "uint8"), ((chunks, 1, 1, 2, 4, 16, 4), "int8"), *constants]
    product = ChunkedProduct(BYTES, Window((height, width)), Instructions(DOTS[0].name), Grouping(0, 0, 2))
    program, _ = product_program(product, operands, "uint8")
    chosen = by_hand(tvm.IRModule({"main": program.with_attr("global_symbol", "main")}))
    (_, rows), (_, columns), (_, vectors) = tile_sizes(chosen.trace)
    data = 1
    assert rows * columns * vectors + vectors + data <= _VECTOR_REGISTERS


def tile_sizes(trace):
    return [tuple(map(int, decision)) for _, decision in sorted(trace[1])]


def test_a_tile_without_vnni_has_a_row_of_a_small_image(target):
    dot = next(dot for dot in DOTS if dot.words)
    operands = [((1, 7, 7, 2, 16), "uint8"), ((2, 1, 1, 2, 4, 16, 4), "int8"), *_CONSTANTS]
    program, _ = product_program(
        ChunkedProduct(BYTES, Window((7, 7)), Instructions(dot.name), Grouping(0, 0, 2)), operands, "uint8"
    )
    chosen = by_hand(tvm.IRModule({"main": program.with_attr("global_symbol", "main")}))
    assert [size for _, size in tile_sizes(chosen.trace)] == [1, 7, 1]


_TILED = {
    "a 3x3 convolution": (((1, 6, 8, 2, 16), (2, 3, 3, 2, 4, 16, 4)), Window((6, 8), padding=(1, 1, 1, 1))),
    "few channels": (((1, 9, 17, 1, 4), (2, 3, 3, 1, 1, 16, 4)), Window((4, 8), (2, 2))),
    "a dilated one": (((2, 8, 10, 3, 16), (2, 3, 1, 3, 4, 16, 4)), Window((4, 10), dilation=(2, 1))),
    "rows": (((1, 1, 28, 4, 16), (2, 1, 1, 4, 4, 16, 4)), Window((1, 28))),
}


@pytest.mark.parametrize("name", _TILED)
def test_tiles_compute_what_vectors_do(target, name):
    here = cpu_target("sapphirerapids", "amx_int8")
    (data, weight), window = _TILED[name]
    operands = [(data, "uint8"), (weight, "int8"), *_CONSTANTS]
    product = ChunkedProduct(BYTES, window, Instructions(DOTS[0].name, tiles=AmxProduct), Grouping(0, 0, data[3]))
    program, _ = product_program(product, operands, "uint8")
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    expected = run(module, here)
    chosen = by_hand(module)
    assert "autotune_amx" in str(chosen.trace)
    (schedule,) = (item.sch for item in replay([chosen], module, here))
    assert np.array_equal(run(schedule.mod, here), expected)
    knobs = Knobs(module, here)
    assert knobs.find(chosen.trace) is not None
    for sketch in range(len(knobs.sketches())):
        applied = knobs.apply((sketch, *(0 for _ in knobs.space.knobs[1:])))
        assert np.array_equal(run(applied.schedule.mod, here), expected)


def test_a_name_says_the_geometry_of_a_tile():
    product = AmxProduct(2, 14, 2, 3, 3, 4, 16, 1, 1, 1)
    assert AmxProduct.of(product.name) == product
    assert AmxProduct.of(product.name + "_1") is None
    assert AmxProduct.of("autotune_amx_0_0_0_0_0_0_0_0_0_0") is None
