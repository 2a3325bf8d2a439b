"""Operators on the elements of quantised tensors, one by one: sums, products, and functions of one value as tables."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.integer import byte_kernels
from autotune.tvm_backend.integer.graph import Forms, IntegerGraph, Quantised, floats, limits_of
from autotune.tvm_backend.integer.kernels import LANES
from autotune.tvm_backend.integer.layers import PRODUCTS, requantised_layer
from autotune.tvm_backend.integer.quantity import LEVELS, Quantity
from autotune.tvm_backend.integer.tables import FunctionOfOne, NoTable
from autotune.tvm_backend.passes.rewrite import op_name, static_shape
from autotune.tvm_backend.types import Expr

Array = npt.NDArray[Any]


def add(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute a product with its bias, a sum of two quantised values, or one with a constant for each channel."""
    for one, other in (quantised.value.args, reversed(list(quantised.value.args))):
        product = graph.value(one)
        if op_name(product) in PRODUCTS:
            return requantised_layer(graph, var, replace(quantised, value=product), other)
    return _sum(graph, var, quantised) or _channels(graph, quantised)


def _sum(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    one, other = map(graph.quantised_operand, quantised.value.args)
    if one is None or other is None or static_shape(one) != static_shape(other):
        return None
    quantities = graph.quantity(one), graph.quantity(other)
    return _sum_in_product(graph, (one, other), quantised) or _sum_alone(graph, (one, other), quantities, quantised)


def _sum_constants(one: Quantity, other: Quantity, quantised: Quantised) -> Expr:
    """As ONNX Runtime computes them: one constant for the three zero points, of which it rounds one product."""
    result = quantised.quantity
    first = one.scale / result.scale
    second = other.scale / result.scale
    rounded = np.float64(second * np.float32(other.zero))
    fixed = np.float32(result.zero) - np.float32(np.float64(first) * np.float64(one.zero) + rounded)
    return floats([first, second, fixed, *quantised.limits])


def _sum_alone(
    graph: IntegerGraph, operands: tuple[Expr, Expr], quantities: tuple[Quantity, Quantity], quantised: Quantised
) -> Forms:
    is_image, one, other = graph.like(*operands)
    shape = static_shape(one)
    flat = graph.flat(one), graph.flat(other)
    program = byte_kernels.sum_kernel(static_shape(flat[0]))
    constants = _sum_constants(*quantities, quantised)
    flat_sum = graph.kernel(program, "integer_sum", [*flat, constants], static_shape(flat[0]), "uint8")
    result = graph.emit(relax.op.reshape(flat_sum, shape))
    return Forms(image=result) if is_image else Forms(rows=result)


def _sum_in_product(graph: IntegerGraph, operands: tuple[Expr, Expr], quantised: Quantised) -> Forms | None:
    """Add to the result of a convolution before it is written."""
    if len(quantised.shape) != 4:
        return None
    for index in (1, 0):
        layer = graph.layer(operands[index])
        if layer is not None:
            other = operands[1 - index]
            quantities = (graph.quantity(other), layer.quantity) if index else (layer.quantity, graph.quantity(other))
            rest = [graph.wide_image(other), _sum_constants(*quantities, quantised)]
            return Forms(image=layer.call(*(reversed(rest) if index else rest), name="integer_conv2d_add"))
    return None


def _channels(graph: IntegerGraph, quantised: Quantised) -> Forms | None:
    """A constant for each channel, added to or multiplied with a quantised value whose channels are innermost."""
    for expr, constant in (quantised.value.args, reversed(list(quantised.value.args))):
        data = graph.quantised_operand(expr)
        numbers = graph.vector(constant)
        if data is None or numbers is None or static_shape(data) != quantised.shape:
            continue
        columns = quantised.shape[-1]
        if numbers.shape[-1:] != (columns,) or numbers.size != columns or columns % LANES:
            return None
        return _scaled_channels(graph, data, numbers.reshape(-1), quantised)
    return None


def _scaled_channels(graph: IntegerGraph, data: Expr, numbers: Array, quantised: Quantised) -> Forms:
    given = graph.quantity(data)
    result = quantised.quantity
    columns = quantised.shape[-1]
    zero = np.float32(given.zero)
    if op_name(quantised.value) == "relax.add":
        factor = np.broadcast_to(given.scale / result.scale, (columns,))
        offset = numbers / result.scale - zero * factor
    else:
        factor = given.scale * numbers / result.scale
        offset = -zero * factor
    shape = (prod(quantised.shape[:-1]), columns // LANES, LANES)
    vectors = [relax.const(item.astype(np.float32).reshape(shape[1:]), "float32") for item in (factor, offset)]
    flat = graph.emit(relax.op.reshape(graph.rows(data), shape))
    limits = limits_of(result, quantised.limits)
    program = byte_kernels.channel_kernel(shape)
    flat_result = graph.kernel(program, "integer_channels", [flat, *vectors, limits], shape, "uint8")
    return Forms(rows=graph.emit(relax.op.reshape(flat_result, quantised.shape)))


def multiply(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Compute a product of two quantised values, or of one with a constant for each channel."""
    one, other = map(graph.quantised_operand, quantised.value.args)
    if one is None or other is None:
        return _channels(graph, quantised)
    if static_shape(one) != static_shape(other) or one.same_as(other) or _same_origin(graph, one, other):
        return None
    first = graph.quantity(one)
    second = graph.quantity(other)
    result = quantised.quantity
    factor = first.scale * second.scale / result.scale
    constants = floats([first.zero, second.zero, factor, result.zero, *quantised.limits])
    is_image, *operands = graph.like(one, other)
    shape = static_shape(operands[0])
    flat = [graph.flat(item) for item in operands]
    program = byte_kernels.product_kernel(static_shape(flat[0]))
    flat_product = graph.kernel(program, "integer_product", [*flat, constants], static_shape(flat[0]), "uint8")
    made = graph.emit(relax.op.reshape(flat_product, shape))
    return Forms(image=made) if is_image else Forms(rows=made)


def _same_origin(graph: IntegerGraph, one: Expr, other: Expr) -> bool:
    """Whether both are functions of one quantised value, so that a table does it."""
    origins = [graph.tables.get(item, (item, None))[0] for item in (one, other)]
    return bool(origins[0].same_as(origins[1]))


def table(graph: IntegerGraph, var: Expr, expr: Expr, quantity: Quantity) -> Forms | None:
    """Compute a function of one quantised value by a table."""

    def leaf(item: Expr) -> tuple[Expr, Array] | None:
        source = graph.quantised_operand(item)
        if source is None:
            return None
        numbers = graph.quantity(source).numbers()
        origin, table = graph.tables.get(source, (source, np.arange(LEVELS)))
        return origin, numbers[table]

    function = FunctionOfOne(graph.values, leaf, graph.number)
    try:
        numbers = function(expr)
    except NoTable:
        return None
    if numbers.size != LEVELS or function.source is None or static_shape(function.source) != static_shape(var):
        return None
    table = quantity.bytes_of(np.nan_to_num(numbers, posinf=np.inf, neginf=-np.inf))
    graph.tables[var] = function.source, table
    return _looked_up(graph, function.source, table)


def _looked_up(graph: IntegerGraph, source: Expr, table: Array) -> Forms:
    is_image = graph.is_image(source)
    data = graph.image(source) if is_image else graph.rows(source)
    result = data if (table == np.arange(LEVELS)).all() else graph.looked_up(data, table)
    return Forms(image=result) if is_image else Forms(rows=result)
