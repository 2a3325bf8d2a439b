"""Convolutions and products with constant weights in integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.isa.available import Instructions, depthwise, dot_instructions
from autotune.tvm_backend.isa.values import WORD
from autotune.tvm_backend.operators.chunked_product import ChunkedProduct
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.operators.element_types import BYTES, LEVELS
from autotune.tvm_backend.operators.integer_product import ByteProduct, DepthwiseProduct, product_program
from autotune.tvm_backend.packing.chunked_weights import (
    PackedWeights,
    by_channel,
    fits,
    pack_convolution,
    pack_depthwise,
)
from autotune.tvm_backend.packing.encodings import Forms
from autotune.tvm_backend.packing.integer_graph import IntegerGraph, in_image, in_rows, limits_of
from autotune.tvm_backend.packing.quantised_tensors import ByteOperand, QuantisedResult, ScaledConstant
from autotune.tvm_backend.types import Expr, Var

Array = npt.NDArray[Any]
PRODUCTS = ("relax.nn.conv2d", "relax.matmul")
_PLAIN = ("NCHW", "OIHW", "NCHW")


@dataclass(frozen=True)
class LinearLayer:
    """A convolution with constant weights, or rows times a constant matrix as a convolution of an image of one row.

    Attributes:
        data: The bytes that are multiplied.
        weight: Of shape (O, I, KH, KW), with I the channels of a group.
        window: The geometry.
        groups: How many groups of channels there are.
        shape: Of the result as the graph has it.
        is_rows: Whether it multiplies rows.
    """

    data: ByteOperand
    weight: ScaledConstant
    window: Window
    groups: int
    shape: tuple[int, ...]
    is_rows: bool

    @property
    def outputs(self) -> int:
        return len(self.weight.integers)

    def by_output(self, numbers: Array) -> Array | None:
        """Return numbers that are broadcast to the result as one for each output; None if they are something else."""
        if numbers.ndim > len(self.shape):  # they would give the result more axes
            return None
        if numbers.size == 1:
            return np.broadcast_to(numbers.reshape(-1), (self.outputs,))
        after = 0 if self.is_rows else 2
        own = numbers.shape[numbers.ndim - 1 - after] if numbers.ndim > after else 0
        return numbers.reshape(-1) if own == numbers.size == self.outputs else None


@dataclass(frozen=True)
class ScaledLayer:
    """A layer whose sums are scaled to floats: sums * (step * scale) + bias.

    Attributes:
        layer: What computes the sums.
        step: A float for all, (1,).
        scale, bias: Floats for each output, (O,).
    """

    layer: LinearLayer
    step: Expr
    scale: Array
    bias: Array


def linear_layer(graph: IntegerGraph, value: Expr) -> LinearLayer | None:
    """Return the layer that a convolution or product of floats or 32-bit integers computes; None for any other."""
    if op_name(value) not in PRODUCTS:
        return None
    data = graph.operand(value.args[0])
    weight = graph.constant(graph.uncast(value.args[1]))
    shape = static_shape(value)
    if data is None or weight is None or not shape or not prod(shape):
        return None
    if np.abs(weight.integers).max() >= LEVELS:  # no bytes, and their sums may be too large for 32 bits
        return None
    if op_name(value) == "relax.matmul":
        return _rows_layer(data, weight, shape)
    return _convolution_layer(data, weight, value, shape)


def _rows_layer(data: ByteOperand, matrix: ScaledConstant, shape: tuple[int, ...]) -> LinearLayer | None:
    if matrix.integers.ndim != 2 or matrix.axis == 0 or len(static_shape(data.var)) < 2:
        return None
    across = matrix.transposed([1, 0])
    weight = ScaledConstant(across.integers[:, :, None, None], across.scale, across.axis)
    return LinearLayer(data, weight, Window((1, prod(shape[:-1]))), 1, shape, is_rows=True)


def _convolution_layer(
    data: ByteOperand, weight: ScaledConstant, call: Expr, shape: tuple[int, ...]
) -> LinearLayer | None:
    attrs = call.attrs
    if weight.axis > 0 or (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != _PLAIN:
        return None
    return LinearLayer(data, weight, Window.of(call), int(attrs.groups), shape, is_rows=False)


def requantised_layer(
    graph: IntegerGraph, value: Expr, result: QuantisedResult, bias: Expr | None = None
) -> Forms | None:
    """Compute a layer whose result is quantised, and its bias."""
    layer = linear_layer(graph, value)
    if layer is None or layer.data.quant_params is None:
        return None
    added = _in_units(graph, layer, bias)
    if added is None:
        return None
    given = layer.data.quant_params
    image, window = _image(graph, layer)
    product, packed = _product(graph, layer, image, window)
    zero = given.zero - product.offset
    scale = by_channel((given.scale * layer.weight.scale) / result.quant_params.scale, layer.outputs, np.float32)
    moved = by_channel(added, layer.outputs, np.int64) - zero * packed.totals.astype(np.int64)
    constants = [relax.const(item, str(item.dtype)) for item in (packed.weight, scale, moved.astype(np.int32))]
    weight, *others = constants
    operands = (image, weight, layer.data.zero_point, *others, limits_of(result))

    def call(*more: Expr, name: str = _name(product)) -> Expr:
        return _call(graph, product, name, (*operands, *more), "uint8")

    if layer.is_rows:
        return in_rows(graph.as_rows(call(), layer.shape))
    graph.tensors[result.var].layer = call
    return in_image(call())


def scaled_layer(graph: IntegerGraph, value: Expr, others: Mapping[Var, ScaledLayer]) -> ScaledLayer | None:
    """Return the layer whose scaled sums a value is; None if it is something else.

    Args:
        others: The layers so far, whose bias a value may add.
    """
    layer = linear_layer(graph, value)
    if layer is not None and layer.data.scale is not None and str(value.ty.dtype) == "float32":
        return _scaled(layer, layer.data.scale, layer.weight.scale)
    if op_name(value) == "relax.multiply":
        return _scaled_sums(graph, *value.args) or _scaled_sums(graph, *reversed(list(value.args)))
    if op_name(value) == "relax.add":
        for product, bias in (value.args, reversed(list(value.args))):
            if product in others and (layer_with_bias := _with_bias(graph, others[product], product, bias)):
                return layer_with_bias
    return None


def _scaled(layer: LinearLayer, step: Expr, scale: Array) -> ScaledLayer:
    outputs = layer.outputs
    return ScaledLayer(layer, step, np.broadcast_to(scale.reshape(-1), (outputs,)), np.zeros(outputs, np.float32))


def _scaled_sums(graph: IntegerGraph, sums: Expr, factor: Expr) -> ScaledLayer | None:
    """32-bit sums times a factor: a number that the graph computes, constants for the outputs, or a product of both."""
    layer = linear_layer(graph, graph.value(graph.uncast(sums)))
    if layer is None or str(graph.uncast(sums).ty.dtype) != "int32":
        return None
    scale: Array = np.ones(1, np.float32)
    step = factor
    product = graph.value(factor)
    if op_name(product) == "relax.multiply":
        for one, other in (product.args, reversed(list(product.args))):
            if (vector := graph.vector(one)) is not None:
                scale = vector
                step = other
    across = layer.by_output(scale)
    if across is None or prod(static_shape(step)) != 1:
        return None
    one = graph.emit(relax.op.reshape(graph.leaf(step), (1,)))
    return _scaled(layer, one, across)


def _with_bias(graph: IntegerGraph, scaled: ScaledLayer, product: Var, bias: Expr) -> ScaledLayer | None:
    numbers = graph.vector(bias)
    if numbers is None or scaled.bias.any() or not graph.is_read_once(product):
        return None
    added = scaled.layer.by_output(numbers.reshape(static_shape(bias)))
    return None if added is None else replace(scaled, bias=added)


def scaled_result(graph: IntegerGraph, scaled: ScaledLayer) -> Expr:
    """Compute a layer whose result is floats."""
    layer = scaled.layer
    image, window = _image(graph, layer)
    product, packed = _product(graph, layer, image, window)
    across = [by_channel(item, layer.outputs, np.float32) for item in (scaled.scale, scaled.bias)]
    weight, totals, scale, bias = (
        relax.const(item, str(item.dtype)) for item in (packed.weight, packed.totals, *across)
    )
    operands = (image, weight, layer.data.zero_point, totals, scaled.step, scale, bias)
    return _shaped(graph, _call(graph, product, _name(product) + "_scaled", operands, "float32"), layer)


def int32_result(graph: IntegerGraph, layer: LinearLayer) -> Expr:
    """Compute a layer whose result is 32-bit sums."""
    image, window = _image(graph, layer)
    product, packed = _product(graph, layer, image, window)
    weight, totals = (relax.const(item, str(item.dtype)) for item in (packed.weight, packed.totals))
    operands = (image, weight, layer.data.zero_point, totals)
    return _shaped(graph, _call(graph, product, _name(product) + "_sums", operands, "int32"), layer)


def _shaped(graph: IntegerGraph, image: Expr, layer: LinearLayer) -> Expr:
    return graph.as_rows(image, layer.shape) if layer.is_rows else graph.unpacked(image, layer.shape)


def _in_units(graph: IntegerGraph, layer: LinearLayer, bias: Expr | None) -> Array | None:
    """A bias in units of the sums. One that the graph has in floats is rounded to them."""
    if bias is None:
        return np.zeros(1, np.int64)
    unit = layer.data.quant_params.scale * layer.weight.scale if layer.data.quant_params else layer.weight.scale
    inner = graph.unreshaped(bias)
    constant = graph.constant(inner)
    if constant is not None and np.array_equal(constant.scale, unit):
        return layer.by_output(constant.integers.reshape(static_shape(bias)))
    numbers = graph.vector(inner)
    across = None if numbers is None else layer.by_output(numbers.reshape(static_shape(bias)))
    if across is None:
        return None
    steps = np.rint(across.astype(np.float64) / unit.astype(np.float64))
    return steps.astype(np.int64) if np.abs(steps).max() < 2**31 else None


def _image(graph: IntegerGraph, layer: LinearLayer) -> tuple[Expr, Window]:
    """The image that a layer reads, and the window on it."""
    window = layer.window
    if layer.is_rows:
        return graph.image_of_rows(layer.data.var), window
    padded = graph.padded_image(layer.data.var, window.padding)
    if padded is not None:
        return padded, replace(window, padding=(0, 0, 0, 0))
    return graph.image(layer.data.var), window


def _product(graph: IntegerGraph, layer: LinearLayer, image: Expr, window: Window) -> tuple[ByteProduct, PackedWeights]:
    """How a layer is computed, and its weights in the form that the kernel reads."""
    integers = layer.weight.integers
    channels = 0 if layer.is_rows else static_shape(layer.data.var)[1]
    by_channel = layer.groups == channels == layer.outputs > WORD and integers.shape[1] == 1 and fits(integers)
    if by_channel:
        packed = pack_depthwise(integers, window.dilation[1])
        kernel = depthwise(graph.target)
        instructions = Instructions("" if kernel is None else kernel.name)
        return DepthwiseProduct(replace(window, dilation=(window.dilation[0], 1)), instructions), packed
    *_, chunks, lanes = static_shape(image)
    packed = pack_convolution(integers, lanes, chunks, layer.groups)
    instructions = dot_instructions(graph.target, "integers", narrow=packed.narrow)
    return ChunkedProduct(BYTES, window, instructions, packed.grouping), packed.for_instructions(instructions)


def _name(product: ByteProduct) -> str:
    return "integer_depthwise_conv2d" if isinstance(product, DepthwiseProduct) else "integer_conv2d"


def _call(graph: IntegerGraph, product: ByteProduct, name: str, operands: Sequence[Expr], dtype: str) -> Expr:
    types = [(static_shape(item), str(item.ty.dtype)) for item in operands]
    program, shape = product_program(product, types, dtype)
    return graph.kernel(program, name, operands, shape, dtype)
