"""Folded networks compute what ONNX Runtime computes, with no multiplication left after a convolution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tvm import relax

from autotune.tvm_backend.graph.fold_scale import fold_scales

from ..packed_nets import Net, assert_same, imported, operators

_CONV = "relax.nn.conv2d"


def network(channels: int = 3) -> Net:
    return Net(1, channels, 6, 6)


def norm(net: Net, x: str, channels: int) -> str:
    return net.op("BatchNormalization", x, *(net.factors(channels) for _ in range(4)))


def folded(net: Net, *outputs: str) -> Counter[str]:
    """Fold the network, compare what it computes with ONNX Runtime, and count its operators."""
    model = net.model(*outputs)
    module = fold_scales(imported(model))
    assert_same(model, module)
    return operators(module)


@pytest.mark.parametrize(("bias", "group"), [(False, 1), (True, 2), (True, 4)])
def test_batch_normalisation_leaves_one_addition(bias: bool, group: int) -> None:
    net = network(4)
    result = net.op("Relu", norm(net, net.conv("x", 4, 8, bias=bias, group=group), 8))
    assert folded(net, result) == {_CONV: 1, "relax.add": 1, "relax.nn.relu": 1}


def test_scales_and_shifts_after_the_second_of_two_convolutions() -> None:
    net = network()
    inner = net.op("Relu", norm(net, net.conv("x", 3, 8, bias=False), 8))
    x = net.op("Mul", net.factors(8, 1, 1), norm(net, net.conv(inner, 8, 8), 8))
    x = net.op("Sub", net.factors(1, 8, 1, 1), net.op("Add", x, net.factors(1, 8, 1, 1)))
    x = net.op("Div", x, net.given(np.float32(3)))
    assert folded(net, x) == {_CONV: 2, "relax.add": 2, "relax.nn.relu": 1}


def test_normalisation_elsewhere_is_one_multiplication_and_one_addition() -> None:
    net = network(4)
    pooled = net.op("MaxPool", "x", kernel_shape=[2, 2])
    assert folded(net, norm(net, norm(net, pooled, 4), 4)) == {
        "relax.nn.max_pool2d": 1,
        "relax.multiply": 1,
        "relax.add": 1,
    }


def test_convolution_with_another_use_keeps_its_weights() -> None:
    net = network()
    x = net.conv("x", 3, 8, bias=False)
    counts = folded(net, net.op("Add", net.op("Relu", x), norm(net, x, 8)))
    assert counts == {_CONV: 1, "relax.multiply": 1, "relax.add": 2, "relax.nn.relu": 1}


def test_run_ends_at_a_value_with_two_uses() -> None:
    net = network()
    x = norm(net, net.conv("x", 3, 8, bias=False), 8)
    y = net.op("Mul", x, net.factors(8, 1, 1))
    assert folded(net, net.op("Mul", x, y)) == {_CONV: 1, "relax.add": 1, "relax.multiply": 2}


def test_convolution_that_is_an_output_keeps_its_weights() -> None:
    net = network()
    x = net.conv("x", 3, 8, bias=False)
    assert folded(net, norm(net, x, 8), x) == {_CONV: 1, "relax.multiply": 1, "relax.add": 1}


def test_output_used_once_inside() -> None:
    net = network()
    x = net.op("Mul", net.conv("x", 3, 8, bias=False), net.factors(8, 1, 1))
    assert folded(net, x, net.op("Add", x, net.given(np.float32(1)))) == {_CONV: 1, "relax.add": 1}


@pytest.mark.parametrize(("shape", "kind"), [((8, 6, 6), "Mul"), ((1, 8, 1, 1), "Pow")])
def test_constants_that_are_no_factor_of_a_channel_stay(shape: tuple[int, ...], kind: str) -> None:
    net = network()
    counts = folded(net, net.op(kind, net.op("Abs", net.conv("x", 3, 8, bias=False)), net.factors(*shape)))
    assert counts["relax.multiply"] + counts["relax.power"] == 1


def test_constant_that_broadens_the_value_stays() -> None:
    net = network(1)
    assert folded(net, net.op("Mul", "x", net.factors(5, 1, 1)))["relax.multiply"] == 1


def test_divisions_that_are_no_scale_stay() -> None:
    net = network()
    positive = net.op("Exp", net.conv("x", 3, 2, bias=False))
    by_value = net.op("Div", net.factors(2, 1, 1), positive)
    by_zero = net.op("Div", positive, net.given(np.array([[[1]], [[0]]], np.float32)))
    assert folded(net, by_value, by_zero)["relax.divide"] == 2


def test_nothing_to_do_drops_nothing() -> None:
    net = network()
    zero, one = (net.given(np.float32(number)) for number in (0, 1))
    identity = net.op("Mul", net.op("Add", net.conv("x", 3, 2, bias=False), zero), one)
    assert folded(net, identity) == {_CONV: 1}


def test_module_that_branches_is_returned() -> None:
    data = relax.Var("x", relax.TensorType((1, 2, 3, 3), "float32"))
    condition = relax.Var("c", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data, condition]):
        builder.emit_func_output(builder.emit(relax.If(condition, relax.op.add(data, data), data)))
    module = builder.get()
    assert fold_scales(module) is module
