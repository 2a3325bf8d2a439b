"""Convolutions and products with constant matrices in integers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.integer.graph import Forms, IntegerGraph, Product, Quantised, limits_of
from autotune.tvm_backend.integer.intrinsics import depthwise_instructions, dot_instructions
from autotune.tvm_backend.integer.kernels import LANES, WORD, Window, convolution_program
from autotune.tvm_backend.integer.packing import PackedProduct, pack_convolution, pack_depthwise
from autotune.tvm_backend.integer.quantity import Quantity, ScaledConstant
from autotune.tvm_backend.passes.rewrite import static_shape
from autotune.tvm_backend.types import Expr

Array = npt.NDArray[Any]


def conv2d(graph: IntegerGraph, var: Expr, quantised: Quantised, bias: Array | None = None) -> Forms | None:
    """Compute a convolution with constant weights, dense or depthwise, and its bias."""
    call = quantised.value
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    data = graph.quantised_operand(call.args[0])
    weight = graph.constant(call.args[1])
    if data is None or weight is None or not weight.fits() or weight.axis > 0 or layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    strides, padding, dilation = (
        tuple(int(item) for item in values) for values in (attrs.strides, attrs.padding, attrs.dilation)
    )
    outputs, inner = weight.integers.shape[:2]
    given = graph.quantity(data)
    added = _in_units(bias, weight, given, outputs)
    if added is None:
        return None
    groups, channels = int(attrs.groups), static_shape(data)[1]
    depthwise = groups == channels == outputs > WORD and inner == 1
    if groups != 1 and not depthwise:
        return None
    image = graph.image(data)
    if depthwise:
        packed = pack_depthwise(weight, added, given, quantised.quantity, dilation[1])
        window = Window(quantised.shape[2:], strides, padding, (dilation[0], 1))
    else:
        packed = pack_convolution(weight, added, given, quantised.quantity, static_shape(image)[-1])
        window = Window(quantised.shape[2:], strides, padding, dilation)
    return Forms(image=_convolution(graph, var, packed, (image, given), window, quantised, depthwise=depthwise))


def _in_units(bias: Array | None, weight: ScaledConstant, data: Quantity, outputs: int) -> Array | None:
    """A bias in units of the sums. One that the graph has in floats is rounded to them."""
    if bias is None:
        return np.zeros(outputs, np.int64)
    if bias.size not in (1, outputs):
        return None
    steps = bias.astype(np.float64).reshape(-1) / (data.scale * weight.scale).astype(np.float64)
    if np.abs(steps).max() >= 2**31:
        return None
    return np.broadcast_to(np.rint(steps).astype(np.int64), (outputs,))


def matmul(graph: IntegerGraph, var: Expr, quantised: Quantised, bias: Array | None = None) -> Forms | None:
    """Compute rows times a constant matrix, as a convolution of an image of one row with a 1x1 kernel."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    matrix = graph.constant(call.args[1])
    if data is None or matrix is None or matrix.integers.ndim != 2 or matrix.axis == 0 or not matrix.fits():
        return None
    across = matrix.transposed([1, 0])
    weight = ScaledConstant(across.integers[:, :, None, None], across.scale, across.axis)
    inner, outputs = matrix.integers.shape
    given = graph.quantity(data)
    added = _in_units(bias, weight, given, outputs)
    count = prod(quantised.shape[:-1])
    if added is None or len(static_shape(data)) < 2 or not count:
        return None
    rows = graph.rows(data)
    filled = -(-inner // LANES) * LANES
    flat = graph.emit(relax.op.reshape(rows, (count, inner)))
    if filled != inner:
        flat = graph.emit(relax.op.nn.pad(flat, [0, 0, 0, filled - inner]))
    image = graph.emit(relax.op.reshape(flat, (1, 1, count, filled // LANES, LANES)))
    packed = pack_convolution(weight, added, given, quantised.quantity, LANES)
    return _as_rows(graph, _convolution(graph, var, packed, (image, given), Window((1, count)), quantised), quantised)


def _as_rows(graph: IntegerGraph, image: Expr, quantised: Quantised) -> Forms:
    *rows, columns = quantised.shape
    filled = prod(static_shape(image)[-2:])
    flat = graph.emit(relax.op.reshape(image, (*rows, filled)))
    if filled != columns:
        last = len(rows)
        flat = graph.emit(relax.op.strided_slice(flat, axes=[last], begin=[0], end=[columns]))
    return Forms(rows=flat)


def _convolution(
    graph: IntegerGraph,
    var: Expr,
    packed: PackedProduct,
    data: tuple[Expr, Quantity],
    window: Window,
    quantised: Quantised,
    *,
    depthwise: bool = False,
) -> Expr:
    """Call the kernel of a convolution."""
    point = relax.const(np.array([data[1].zero], np.uint8), "uint8")
    limits = limits_of(quantised.quantity, quantised.limits)
    constants = [packed.weight, packed.scale, packed.bias]
    operands = (data[0], *(relax.const(item, str(item.dtype)) for item in constants), point, limits)
    target = graph.target
    dots = dot_instructions(target, narrow=packed.narrow)
    instructions = depthwise_instructions(target) if depthwise else dots

    def call(*args: Expr, name: str = "integer_depthwise_conv2d" if depthwise else "integer_conv2d") -> Expr:
        types = [(static_shape(item), str(item.ty.dtype)) for item in args]
        program, shape = convolution_program(types, window, instructions, depthwise=depthwise)
        return graph.kernel(program, name, args, shape, "uint8")

    graph.remember(var, Product(call, operands, quantised.quantity, quantised.limits))
    return call(*operands)
