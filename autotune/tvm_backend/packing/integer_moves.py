"""Operators that move quantised elements: concatenations, reshapes, slices, enlarged images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.convolution import channels_of_part, repeats
from autotune.tvm_backend.operators.integer_product import LANES
from autotune.tvm_backend.packing.integer_graph import LARGEST, Forms, IntegerGraph, Quantised
from autotune.tvm_backend.packing.quant_params import Quantity
from autotune.tvm_backend.types import Expr


def concat(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Concatenate tensors, which are requantised on the way where they are images."""
    operands = [graph.quantised_operand(item) for item in _fields(graph, quantised.value.args[0])]
    quantised_operands = [item for item in operands if item is not None]
    if not operands or len(quantised_operands) != len(operands) or quantised.limits != (0, LARGEST):
        return None
    rank = len(quantised.shape)
    axis = int(quantised.value.attrs.axis or 0) % rank
    if rank == 4 and axis == 1 and all(static_shape(item)[1] % LANES == 0 for item in quantised_operands):
        return _concat_images(graph, quantised_operands, quantised)
    if any(graph.quantity(item) != quantised.quantity for item in quantised_operands):
        return None
    return Forms(rows=graph.emit(relax.op.concat([graph.rows(item) for item in quantised_operands], axis=axis)))


def _concat_images(graph: IntegerGraph, tensors: Sequence[Expr], quantised: Quantised) -> Forms:
    result = quantised.quantity
    images = []
    lines = []
    for part in tensors:
        given = graph.quantity(part)
        line = given.line_to(result)
        table = None if line else result.bytes_of(given.numbers())
        images.append(graph.image(part) if table is None else graph.looked_up(graph.image(part), table))
        lines.append(line or (1, -result.zero))
    constants = relax.const(np.array([*lines, (result.zero, 0)], np.float32), "float32")
    program = byte_kernels.concat_kernel([static_shape(item) for item in images])
    batch, channels, height, width = quantised.shape
    shape = (batch, height, width, channels // LANES, LANES)
    return Forms(image=graph.kernel(program, "integer_concat", [*images, constants], shape, "uint8"))


def part(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Take a part of channels that were split, which is requantised on the way."""
    split: Expr = graph.value(quantised.value.tuple_value)
    if op_name(split) != "relax.split" or len(quantised.shape) != 4 or quantised.limits != (0, LARGEST):
        return None
    data = graph.quantised_operand(split.args[0])
    first, count = channels_of_part(quantised.value)
    if data is None or int(split.attrs.axis) % 4 != 1 or first % LANES or count % LANES:
        return None
    image = graph.image(data)
    program = byte_kernels.slice_kernel(static_shape(image), first // LANES, count // LANES)
    result = (*static_shape(image)[:3], count // LANES, LANES)
    cut = graph.kernel(program, "integer_slice", [image], result, "uint8")
    given = graph.quantity(data)
    same = given == quantised.quantity
    return Forms(image=cut if same else graph.looked_up(cut, quantised.quantity.bytes_of(given.numbers())))


def _fields(graph: IntegerGraph, expr: Expr) -> list[Expr]:
    value = graph.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else []


def moved(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Move bytes as an operator moves elements, if they mean the same before and after."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    if data is None or graph.quantity(data) != quantised.quantity or quantised.limits != (0, LARGEST):
        return None
    made = relax.Call(call.op, [graph.rows(data), *call.args[1:]], call.attrs, call.ty_args)
    return Forms(rows=graph.emit(made))


def rows_of_bytes(graph: IntegerGraph, var: Expr, value: Expr) -> bool:
    """Take the rows of a quantised table as bytes, and dequantise these. Return whether a value is such rows."""
    table: Expr = graph.value(value.args[0]) if op_name(value) == "relax.take" else None
    quantity = Quantity.of(table) if op_name(table) == "relax.dequantize" else None
    if quantity is None or not is_tensor_constant(table.args[0]):
        return False
    operands = [table.args[0], *map(graph.leaf, value.args[1:])]
    rows = graph.emit(relax.Call(value.op, operands, value.attrs))
    graph.define(rows, quantity, Forms(outer=rows))
    graph.values[var] = relax.Call(table.op, [rows, *table.args[1:]], table.attrs, table.ty_args)
    graph.defer(var, lambda: graph.emit(graph.values[var]))
    return True


def resize(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Repeat pixels a whole number of times."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    factors = repeats(call)
    if data is None or factors is None or quantised.limits != (0, LARGEST):
        return None
    if graph.quantity(data) != quantised.quantity:
        return None
    image = graph.image(data)
    batch, _, _, chunks, lanes = static_shape(image)
    program = byte_kernels.enlarge_kernel(static_shape(image), factors)
    result = (batch, *quantised.shape[2:], chunks, lanes)
    return Forms(image=graph.kernel(program, "integer_enlarge", [image], result, "uint8"))
