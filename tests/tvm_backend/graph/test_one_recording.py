"""The kernels of a model are one CUDA graph, but for those that read inputs alone and those that write results."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from autotune.tvm_backend.export.compilation import lower_tuned
from autotune.tvm_backend.expressions import bindings_of
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.target import resolve_target, tvm_target

SIDE = 32
TENSOR = relax.TensorType((SIDE, SIDE), "float32")


class Net:
    """Products with square matrices, and what goes on beside them."""

    def __init__(self, builder):
        self.builder = builder

    def product(self, value):
        weight = np.random.default_rng(1).normal(size=(SIDE, SIDE)).astype("float32")
        return self.builder.emit(relax.op.matmul(value, relax.const(weight)))

    def sum(self, left, right):
        return self.builder.emit(relax.op.add(left, right))


def chain(net, x):
    return [net.product(net.product(net.product(x)))]


def residual(net, x):
    return [net.product(net.sum(net.product(net.product(x)), x))]


def result_that_is_read(net, x):
    first = net.product(net.product(x))
    return [first, net.product(net.product(first))]


def result_on_the_way(net, x):
    first = net.product(net.product(x))
    beside = net.product(first)
    return [net.product(net.product(first)), beside]


def input_that_two_read(net, x):
    return [net.product(net.sum(net.product(x), net.product(net.sum(x, x))))]


def kernels_of(make):
    """The kernels of each recording, and those that are launched one by one."""
    load_tvm("cuda")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description)
    builder = relax.BlockBuilder()
    x = relax.Var("x", TENSOR)
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            results = [builder.emit_output(item) for item in make(Net(builder), x)]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    lowered = lower_tuned(prepare(builder.get(), target), [], {}, target, cuda_graph=True)
    programs = {item.name_hint for item in lowered.get_global_vars() if isinstance(lowered[item], tirx.PrimFunc)}
    called = {
        item.name_hint: [name for name in map(callee, bindings_of(lowered[item])) if name in programs]
        for item in lowered.get_global_vars()
        if item.name_hint not in programs
    }
    alone = called.pop("main")
    return [names for name, names in sorted(called.items()) if "capture" in name], alone


def callee(binding):
    return getattr(getattr(binding.value, "op", None), "name_hint", "")


@pytest.mark.parametrize(
    ("make", "recorded", "alone"),
    [
        (chain, 1, 2),
        (residual, 2, 2),
        (result_that_is_read, 2, 3),
        (result_on_the_way, 2, 3),
        (input_that_two_read, 3, 2),
    ],
)
def test_a_model_is_recorded_once(make, recorded, alone):
    recordings, others = kernels_of(make)
    assert [len(names) for names in recordings] == [recorded], recordings
    assert len(others) == alone, others


def test_only_what_would_cut_the_recording_is_copied():
    copies = {make.__name__: kernels_of(make)[1].count("copy") for make in (chain, residual, result_that_is_read)}
    assert copies == {"chain": 0, "residual": 1, "result_that_is_read": 1}
