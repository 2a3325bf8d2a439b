"""Maxima and averages over windows of quantised images."""

from __future__ import annotations

from math import prod

import numpy as np

from autotune.tvm_backend.expressions import static_shape
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.packing.integer_graph import LARGEST, Forms, IntegerGraph, Quantised, floats, limits_of
from autotune.tvm_backend.types import Expr


def max_pool(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute a maximum over windows."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    if data is None or graph.quantity(data) != quantised.quantity or str(call.attrs.layout) != "NCHW":
        return None
    if set(Window.of(call).dilation) != {1} or quantised.limits != (0, LARGEST):
        return None
    image = graph.image(data)
    program = byte_kernels.max_pool_kernel(static_shape(image), _kernel(call), Window.of(call))
    shape = (quantised.shape[0], *quantised.shape[2:], *static_shape(image)[3:])
    return Forms(image=graph.kernel(program, "integer_max_pool", [image], shape, "uint8"))


def _kernel(call: Expr) -> tuple[int, int]:
    high, wide = (int(item) for item in call.attrs.pool_size)
    return high, wide


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
    window = Window.of(call)
    plain = str(call.attrs.layout) == "NCHW" and not call.attrs.ceil_mode
    if any(window.padding) or set(window.dilation) != {1} or not plain:
        return None
    return _averaged(graph, quantised, _kernel(call), window)


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
    given = graph.quantity(data)
    result = quantised.quantity
    count = prod(kernel)
    factor = given.scale / (result.scale * np.float32(count))
    operands = [graph.image(data), floats([given.zero * count, factor]), limits_of(result, quantised.limits)]
    shape = static_shape(operands[0])
    program = byte_kernels.average_kernel(shape, kernel, window)
    result_shape = (shape[0], *window.size, *shape[3:])
    return Forms(image=graph.kernel(program, "integer_average", operands, result_shape, "uint8"))
