"""Every sampled tile of an integer product computes the same, and the schedule by hand is one of the space."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.machine.hardware import cpu_flags
from autotune.tvm_backend.integer.intrinsics import DEPTHWISE, DOTS
from autotune.tvm_backend.integer.kernels import Window, convolution_program
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import by_hand
from autotune.tvm_backend.search.space import replay

_FLAGS = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni", "avx512vl": "avx512vl", "avx512vbmi": "avx512vbmi"}
_CPUS = {"avx512vnni": "icelake-server", "avxvnni": "alderlake", "avx2": "x86-64-v3"}
_CONSTANTS = [((2, 16), "float32"), ((2, 16), "int32"), ((1,), "uint8"), ((3,), "float32")]


def convolution(dot):
    operands = [((1, 6, 8, 2, 16), "uint8"), ((2, 3, 3, 2, 4, 16, 4), "int8"), *_CONSTANTS]
    return convolution_program(operands, Window((6, 8), padding=(1, 1, 1, 1)), dot.name, depthwise=False)


def depthwise(dot):
    operands = [((1, 6, 8, 2, 16), "uint8"), ((2, 3, 1, 16, 4), "int8"), *_CONSTANTS]
    return convolution_program(operands, Window((3, 4), (2, 2), (1, 1, 1, 1)), dot.name, depthwise=True)


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
    tvm.compile(module, target=target)["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("make, dot", [*((convolution, dot) for dot in DOTS), (depthwise, DEPTHWISE)])
def test_the_schedule_by_hand_and_sampled_ones_compute_the_same(target, make, dot):
    flags = {_FLAGS.get(feature, feature) for feature in dot.features}
    if not flags <= cpu_flags():
        pytest.skip(f"this CPU lacks {', '.join(flags - cpu_flags())}")
    here = tvm.target.Target({"kind": "llvm", "mcpu": _CPUS[dot.features[0]], "num-cores": 2})
    program, _ = make(dot)
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    expected = run(module, here)
    chosen = by_hand(module)
    (schedule,) = (item.sch for item in replay([chosen], module, here))
    assert 0 < expected.min() < expected.max() <= 250
    assert np.array_equal(run(schedule.mod, here), expected)
    knobs = Knobs(module, here)
    assert knobs.find(chosen.trace) is not None
    for sketch in range(len(knobs.sketches())):
        applied = knobs.apply((sketch, *(len(knob.values) // 2 for knob in knobs.space.knobs[1:])))
        assert dot.name in str(applied.schedule.trace)
        assert np.array_equal(run(applied.schedule.mod, here), expected)
