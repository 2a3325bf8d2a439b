"""Operators on the elements of quantised tensors, one by one: sums, products, and functions of one value as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.packing.encodings import Forms
from autotune.tvm_backend.packing.integer_graph import IntegerGraph, floats, in_image, in_rows, limits_of
from autotune.tvm_backend.packing.integer_layers import PRODUCTS, requantised_layer
from autotune.tvm_backend.packing.lookup_tables import NotUnary, UnaryLookupTable
from autotune.tvm_backend.packing.quantised_tensors import QuantisedResult, QuantParams
from autotune.tvm_backend.types import Call, Expr, PrimFunc, Var

Array = npt.NDArray[Any]
_NORM = "relax.nn.batch_norm"
_AFFINE = frozenset({"relax.add", "relax.multiply"})


def add(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    """Compute a product with its bias, a sum of two quantised values, or one with a constant for each channel."""
    for one, other in (call.args, reversed(list(call.args))):
        product = graph.value(one)
        if op_name(product) in PRODUCTS:
            return requantised_layer(graph, product, result, other)
    return _sum(graph, call, result) or _channels(graph, call, result)


def _sum(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    tensors = [graph.quantised_operand(item) for item in call.args]
    one, other = tensors
    if one is None or other is None or static_shape(one) != static_shape(other):
        return None
    constants = _sum_constants(graph.quant_params(one), graph.quant_params(other), result)
    in_product = _sum_in_product(graph, tensors, constants) if len(result.shape) == 4 else None
    return in_product or _of_pairs(graph, "integer_sum", byte_kernels.sum_kernel, tensors, constants)


def _sum_constants(one: QuantParams, other: QuantParams, result: QuantisedResult) -> Expr:
    """As ONNX Runtime computes them: one constant for the three zero points, of which it rounds one product."""
    wanted = result.quant_params
    first = one.scale / wanted.scale
    second = other.scale / wanted.scale
    rounded = np.float64(second * np.float32(other.zero))
    fixed = np.float32(wanted.zero) - np.float32(np.float64(first) * np.float64(one.zero) + rounded)
    return floats([first, second, fixed, *result.limits])


def _sum_in_product(graph: IntegerGraph, images: Sequence[Var], constants: Expr) -> Forms | None:
    """Add to the result of a convolution before it is written."""
    for index in (1, 0):
        layer = graph.layer(images[index])
        if layer is not None:
            rest = [graph.wide_image(images[1 - index]), constants]
            return in_image(layer(*(reversed(rest) if index else rest), name="integer_conv2d_add"))
    return None


def _of_pairs(
    graph: IntegerGraph, name: str, program: Callable[..., PrimFunc], tensors: Sequence[Var], constants: Expr
) -> Forms:
    """Compute each byte from those of two tensors at the same place."""
    is_image, one, other = graph.like(*tensors)
    flat = graph.flat(one), graph.flat(other)
    shape = static_shape(flat[0])
    made = graph.kernel(program(shape), name, [*flat, constants], shape, "uint8")
    shaped = graph.emit(relax.op.reshape(made, static_shape(one)))
    return in_image(shaped) if is_image else in_rows(shaped)


def _channels(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    """A constant for each channel, added to or multiplied with a quantised value whose channels are innermost."""
    for expr, constant in (call.args, reversed(list(call.args))):
        data = graph.quantised_operand(expr)
        numbers = graph.vector(constant)
        if data is None or numbers is None or static_shape(data) != result.shape:
            continue
        columns = result.shape[-1]
        if numbers.shape[-1:] != (columns,) or numbers.size != columns or columns % LANES:
            return None
        affine = _unchanged(data, columns).with_constant(call, numbers.reshape(-1))
        rows = graph.emit(relax.op.reshape(graph.rows(data), (prod(result.shape[:-1]), columns // LANES, LANES)))
        made = _requantised(graph, rows, affine, result)
        return in_rows(graph.emit(relax.op.reshape(made, result.shape)))
    return None


@dataclass(frozen=True)
class _Affine:
    """Quantised bytes, times a factor and plus an offset for each channel, [channels]."""

    data: Expr
    factor: Array
    offset: Array

    def then(self, factor: Array | float, offset: Array | float) -> _Affine:
        return _Affine(self.data, self.factor * factor, self.offset * factor + offset)

    def with_constant(self, call: Expr, numbers: Array) -> _Affine:
        """Multiply by the numbers, or add them, as a call does."""
        return self.then(numbers, 0) if op_name(call) == "relax.multiply" else self.then(1, numbers)


def _unchanged(data: Expr, channels: int) -> _Affine:
    return _Affine(data, np.ones(channels, np.float32), np.zeros(channels, np.float32))


def _requantised(graph: IntegerGraph, data: Expr, affine: _Affine, result: QuantisedResult) -> Expr:
    """Compute bytes of which a factor and an offset are known; the last two axes have the channels, filled up."""
    given = graph.quant_params(affine.data)
    wanted = result.quant_params
    factor = given.scale * affine.factor / wanted.scale
    offset = affine.offset / wanted.scale - np.float32(given.zero) * factor
    shape = static_shape(data)
    filled = (0, prod(shape[-2:]) - len(factor))
    vectors = [relax.const(np.pad(item, filled).astype(np.float32).reshape(shape[-2:])) for item in (factor, offset)]
    operands = [data, *vectors, limits_of(result)]
    return graph.kernel(byte_kernels.channel_kernel(shape), "integer_channels", operands, shape, "uint8")


def multiply(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    """Compute a product of two quantised values, or of one with a constant for each channel."""
    one, other = map(graph.quantised_operand, call.args)
    if one is None or other is None:
        return _channels(graph, call, result)
    if static_shape(one) != static_shape(other):
        return _gated(graph, one, other, result) or _gated(graph, other, one, result)
    if graph.origin(one)[0].same_as(graph.origin(other)[0]):  # functions of one quantised value: a table does it
        return None
    constants = _product_constants(graph, one, other, result)
    return _of_pairs(graph, "integer_product", byte_kernels.product_kernel, (one, other), constants)


def _product_constants(graph: IntegerGraph, one: Expr, other: Expr, result: QuantisedResult) -> Expr:
    first = graph.quant_params(one)
    second = graph.quant_params(other)
    wanted = result.quant_params
    factor = first.scale * second.scale / wanted.scale
    return floats([first.zero, second.zero, factor, wanted.zero, *result.limits])


def _gated(graph: IntegerGraph, data: Expr, gate: Expr, result: QuantisedResult) -> Forms | None:
    """An image times one number for each channel, as in squeeze and excitation."""
    shape = static_shape(data)
    if len(shape) != 4 or shape != result.shape or static_shape(gate) != (*shape[:2], 1, 1):
        return None
    images = [graph.wide_image(item) for item in (data, gate)]
    shapes = [static_shape(item) for item in images]
    operands = [*images, _product_constants(graph, data, gate, result)]
    program = byte_kernels.product_kernel(*shapes)
    return in_image(graph.kernel(program, "integer_gate", operands, shapes[0], "uint8"))


def channels_of_image(graph: IntegerGraph, value: Expr, result: QuantisedResult) -> Forms | None:
    """Compute what constants make of each channel of an image: sums, products and batch normalisations of it."""
    if len(result.shape) != 4:
        return None
    channels = result.shape[1]
    affine = _affine(graph, value, channels)
    if affine is None or static_shape(affine.data) != result.shape or channels == 1:
        return None
    return in_image(_requantised(graph, graph.image(affine.data), affine, result))


def _affine(graph: IntegerGraph, value: Expr, channels: int) -> _Affine | None:
    """Return an image of bytes and what constants make of it; None for any other value."""
    if isinstance(value, relax.TupleGetItem):
        norm = graph.value(value.tuple_value)
        return _normalised(graph, norm, channels) if value.index == 0 and op_name(norm) == _NORM else None
    if op_name(value) not in _AFFINE:
        return None
    for expr, constant in (value.args, reversed(list(value.args))):
        numbers = _column(graph.vector(constant), (channels, 1, 1))
        inner = _affine_operand(graph, expr, channels) if numbers is not None else None
        if inner is not None and numbers is not None:
            return inner.with_constant(value, numbers)
    return None


def _affine_operand(graph: IntegerGraph, expr: Expr, channels: int) -> _Affine | None:
    data = graph.quantised_operand(expr)
    if data is None:
        return _affine(graph, graph.value(expr), channels)
    return _unchanged(data, channels)


def _normalised(graph: IntegerGraph, norm: Expr, channels: int) -> _Affine | None:
    """A batch normalisation of the channels, which have the second axis."""
    inner = _affine_operand(graph, norm.args[0], channels)
    vectors = [_column(graph.vector(item), (channels,)) for item in norm.args[1:]]
    if inner is None or int(norm.attrs.axis) != 1 or norm.attrs.training or any(item is None for item in vectors):
        return None
    gamma, beta, mean, variance = (np.asarray(item) for item in vectors)
    factor = (gamma if norm.attrs.scale else 1) / np.sqrt(variance + np.float32(norm.attrs.epsilon))
    return inner.then(factor, (beta if norm.attrs.center else 0) - mean * factor)


def _column(numbers: Array | None, shape: tuple[int, ...]) -> Array | None:
    """The numbers of a constant of a shape, with axes of extent 1 before it or none; None for another constant."""
    if numbers is None or numbers.shape[-len(shape) :] != shape or numbers.size != prod(shape):
        return None
    return numbers.reshape(-1)


def table(graph: IntegerGraph, expr: Expr, result: QuantisedResult) -> Forms | None:
    """Compute a function of one quantised value by a table."""

    def leaf(item: Expr) -> tuple[Expr, Array] | None:
        source = graph.quantised_operand(item)
        if source is None:
            return None
        numbers = graph.quant_params(source).numbers()
        origin, table = graph.origin(source)
        return origin, numbers[table]

    function = UnaryLookupTable(graph.values, leaf, graph.number)
    try:
        numbers = function(expr)
    except NotUnary:
        return None
    if numbers.size != LEVELS or function.source is None or static_shape(function.source) != result.shape:
        return None
    table = result.quant_params.bytes_of(np.nan_to_num(numbers, posinf=np.inf, neginf=-np.inf))
    graph.tensors[result.var].table = function.source, table
    return _looked_up(graph, function.source, table)


def _looked_up(graph: IntegerGraph, source: Expr, table: Array) -> Forms:
    is_image = graph.is_image(source)
    data = graph.image(source) if is_image else graph.rows(source)
    result = data if (table == np.arange(LEVELS)).all() else graph.looked_up(data, table)
    return in_image(result) if is_image else in_rows(result)
