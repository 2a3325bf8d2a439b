"""Maxima and averages over windows of quantised images."""

from __future__ import annotations

from math import prod

import numpy as np

from autotune.tvm_backend.integer import byte_kernels
from autotune.tvm_backend.integer.graph import LARGEST, Forms, IntegerGraph, Quantised, floats, limits_of
from autotune.tvm_backend.integer.kernels import Window
from autotune.tvm_backend.passes.rewrite import static_shape
from autotune.tvm_backend.types import Expr


def max_pool(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute a maximum over windows."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    if data is None or graph.quantity(data) != quantised.quantity or str(call.attrs.layout) != "NCHW":
        return None
    if any(int(item) != 1 for item in call.attrs.dilation) or quantised.limits != (0, LARGEST):
        return None
    kernel, strides, padding = _pooling(call)
    image = graph.image(data)
    window = Window(quantised.shape[2:], strides, padding)
    program = byte_kernels.max_pool_kernel(static_shape(image), kernel, window)
    shape = (quantised.shape[0], *quantised.shape[2:], *static_shape(image)[3:])
    return Forms(image=graph.kernel(program, "integer_max_pool", [image], shape, "uint8"))


def _pooling(call: Expr) -> tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    attrs = call.attrs
    high, wide = (int(item) for item in attrs.pool_size)
    return (high, wide), tuple(int(item) for item in attrs.strides), tuple(int(item) for item in attrs.padding)


def mean(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute the average of each channel, written as a mean."""
    call = quantised.value
    shape = static_shape(call.args[0])
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
    if axes != [2, 3] or len(shape) != 4:
        return None
    made = _averaged(graph, quantised, (shape[2], shape[3]), Window((1, 1)))
    if made is None or call.attrs.keepdims:
        return made
    return Forms(rows=graph.as_rows(made.image, quantised.shape))


def average_pool(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute an average over windows without padding."""
    call = quantised.value
    kernel, strides, padding = _pooling(call)
    plain = str(call.attrs.layout) == "NCHW" and not call.attrs.ceil_mode
    if any(padding) or any(int(item) != 1 for item in call.attrs.dilation) or not plain:
        return None
    return _averaged(graph, quantised, kernel, Window(quantised.shape[2:], strides))


def adaptive_pool(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute the average of each channel, written as a pooling."""
    shape = static_shape(quantised.value.args[0])
    if quantised.shape[2:] != (1, 1) or str(quantised.value.attrs.layout) != "NCHW":
        return None
    return _averaged(graph, quantised, (shape[2], shape[3]), Window((1, 1)))


def _averaged(graph: IntegerGraph, quantised: Quantised, kernel: tuple[int, int], window: Window) -> Forms | None:
    data = graph.quantised_operand(quantised.value.args[0])
    if data is None:
        return None
    given, result, count = graph.quantity(data), quantised.quantity, prod(kernel)
    factor = given.scale / (result.scale * np.float32(count))
    operands = [graph.image(data), floats([given.zero * count, factor]), limits_of(result, quantised.limits)]
    shape = static_shape(operands[0])
    program = byte_kernels.average_kernel(shape, kernel, window)
    result_shape = (shape[0], *window.size, *shape[3:])
    return Forms(image=graph.kernel(program, "integer_average", operands, result_shape, "uint8"))
