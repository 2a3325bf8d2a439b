"""Operators that move quantised elements: concatenations, reshapes, slices, enlarged images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.element_types import BYTES
from autotune.tvm_backend.packing.image_operators import Enlargement, Join, Part
from autotune.tvm_backend.packing.integer_graph import MAX_BYTE, IntegerGraph
from autotune.tvm_backend.packing.quant_params import QuantParams
from autotune.tvm_backend.packing.quantised_tensors import Forms, Quantised
from autotune.tvm_backend.types import Expr


def concat(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Concatenate tensors, which are requantised on the way where they are images."""
    call = quantised.value
    joined = graph.value(call.args[0])
    fields = joined.fields if isinstance(joined, relax.Tuple) else []
    operands = [item for item in map(graph.quantised_operand, fields) if item is not None]
    if not operands or len(operands) != len(fields) or quantised.limits != (0, MAX_BYTE):
        return None
    join = Join.of(call, graph.value)
    if join is not None and join.is_whole:
        return _concat_images(graph, join, operands, quantised.quant_params)
    if any(graph.quant_params(item) != quantised.quant_params for item in operands):
        return None
    axis = int(call.attrs.axis or 0) % len(quantised.shape)
    return Forms(row_major=graph.emit(relax.op.concat([graph.rows(item) for item in operands], axis=axis)))


def _concat_images(graph: IntegerGraph, join: Join, tensors: Sequence[Expr], result: QuantParams) -> Forms:
    images = []
    lines = []
    for tensor in tensors:
        given = graph.quant_params(tensor)
        line = given.line_to(result)
        table = None if line else result.bytes_of(given.numbers())
        images.append(graph.image(tensor) if table is None else graph.looked_up(graph.image(tensor), table))
        lines.append(line or (1, -result.zero))
    constants = relax.const(np.array([*lines, (result.zero, 0)], np.float32), "float32")
    program = byte_kernels.concat_kernel([static_shape(item) for item in images])
    return Forms(nhwc_blocked=join.call(graph, BYTES, images, program, [constants]))


def part(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Take a part of channels that were split, which is requantised on the way."""
    channels = Part.of_split(quantised.value, graph.value(quantised.value.tuple_value))
    if channels is None or not channels.is_whole or quantised.limits != (0, MAX_BYTE):
        return None
    data = graph.quantised_operand(channels.image)
    if data is None:
        return None
    cut = channels.call(graph, BYTES, graph.image(data))
    given = graph.quant_params(data)
    same = given == quantised.quant_params
    return Forms(nhwc_blocked=cut if same else graph.looked_up(cut, quantised.quant_params.bytes_of(given.numbers())))


def moved(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Move bytes as an operator moves elements, if they mean the same before and after."""
    call = quantised.value
    data = graph.quantised_operand(call.args[0])
    if data is None or graph.quant_params(data) != quantised.quant_params or quantised.limits != (0, MAX_BYTE):
        return None
    made = relax.Call(call.op, [graph.rows(data), *call.args[1:]], call.attrs, call.ty_args)
    return Forms(row_major=graph.emit(made))


def rows_of_bytes(graph: IntegerGraph, var: Expr, value: Expr) -> bool:
    """Take the rows of a quantised table as bytes, and dequantise these. Return whether a value is such rows."""
    table: Expr = graph.value(value.args[0]) if op_name(value) == "relax.take" else None
    quant_params = QuantParams.of(table) if op_name(table) == "relax.dequantize" else None
    if quant_params is None or not is_tensor_constant(table.args[0]):
        return False
    operands = [table.args[0], *map(graph.leaf, value.args[1:])]
    rows = graph.emit(relax.Call(value.op, operands, value.attrs))
    graph.define(rows, quant_params, Forms(outer=rows))
    graph.values[var] = relax.Call(table.op, [rows, *table.args[1:]], table.attrs, table.ty_args)
    graph.defer(var, lambda: graph.emit(graph.values[var]))
    return True


def resize(graph: IntegerGraph, var: Expr, quantised: Quantised) -> Forms | None:
    """Repeat pixels a whole number of times."""
    enlargement = Enlargement.of(quantised.value)
    data = graph.quantised_operand(quantised.value.args[0])
    if data is None or enlargement is None or quantised.limits != (0, MAX_BYTE):
        return None
    same = graph.quant_params(data) == quantised.quant_params
    return Forms(nhwc_blocked=enlargement.call(graph, BYTES, graph.image(data))) if same else None
