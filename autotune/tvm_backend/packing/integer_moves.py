"""Operators that move or pool quantised elements. Where their scale changes, they are requantised on the way."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.element_types import BYTES
from autotune.tvm_backend.packing.encodings import Forms
from autotune.tvm_backend.packing.image_operators import Chunks, ImageOperator, Join, Part, Pool
from autotune.tvm_backend.packing.integer_graph import IntegerGraph, floats, in_image, in_rows, limits_of
from autotune.tvm_backend.packing.packed_graph import OPERATORS
from autotune.tvm_backend.packing.quantised_tensors import QuantisedResult, QuantParams
from autotune.tvm_backend.types import Call, Expr, Var


def moved_image(graph: IntegerGraph, operator: ImageOperator, result: QuantisedResult) -> Forms | None:
    """Move or pool the pixels or channels of images in chunks."""
    if not (operator.has_kernel and operator.fits(LANES)):
        return None
    tensors = [item for item in map(graph.quantised_operand, operator.images) if item is not None]
    if len(tensors) != len(operator.images):
        return None
    if isinstance(operator, Pool) and not operator.largest:
        return _averaged(graph, operator, tensors[0], result)
    if result.has_limits:
        return None
    if isinstance(operator, Join):
        return _joined(graph, operator, tensors, result.quant_params)
    given = graph.quant_params(tensors[0])
    same = given == result.quant_params
    if not (same or isinstance(operator, Part)):
        return None
    made = operator.in_chunks(Chunks(graph, BYTES, [graph.image(tensors[0])]))
    return in_image(made if same else graph.looked_up(made, result.quant_params.bytes_of(given.numbers())))


def _averaged(graph: IntegerGraph, pool: Pool, data: Var, result: QuantisedResult) -> Forms:
    given = graph.quant_params(data)
    count = prod(pool.kernel)
    factor = given.scale / (result.quant_params.scale * np.float32(count))
    image = graph.image(data)
    constants = [floats([given.zero * count, factor]), limits_of(result)]
    program = byte_kernels.average_kernel(static_shape(image), pool.kernel, pool.window)
    made = pool.in_chunks(Chunks(graph, BYTES, [image], program, constants))
    return in_image(made) if len(result.shape) == 4 else in_rows(graph.as_rows(made, result.shape))


def _joined(graph: IntegerGraph, join: Join, tensors: Sequence[Var], result: QuantParams) -> Forms:
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
    return in_image(join.in_chunks(Chunks(graph, BYTES, images, program, [constants])))


def concat(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    """Concatenate tensors: as images, or in rows if they mean the same."""
    forms = OPERATORS["relax.concat"](graph, call, result)
    joined = graph.value(call.args[0])
    fields = joined.fields if isinstance(joined, relax.Tuple) else []
    tensors = [graph.quantised_operand(item) for item in fields]
    if forms is not None or not tensors or not all(graph.means_same(item, result) for item in tensors):
        return forms
    axis = int(call.attrs.axis or 0) % len(result.shape)
    return in_rows(graph.emit(relax.op.concat([graph.rows(item) for item in tensors], axis=axis)))


def moved_rows(graph: IntegerGraph, call: Call, result: QuantisedResult) -> Forms | None:
    """Move bytes as an operator moves elements, if they mean the same before and after."""
    data = graph.quantised_operand(call.args[0])
    if not graph.means_same(data, result):
        return None
    made = relax.Call(call.op, [graph.rows(data), *call.args[1:]], call.attrs, call.ty_args)
    return in_rows(graph.emit(made))


def rows_of_bytes(graph: IntegerGraph, var: Var, value: Expr) -> Forms | None:
    """Take the rows of a quantised table as bytes, and dequantise these; None if a value is no such rows."""
    table: Expr = graph.value(value.args[0]) if op_name(value) == "relax.take" else None
    quant_params = QuantParams.of(table) if op_name(table) == "relax.dequantize" else None
    if quant_params is None or not is_tensor_constant(table.args[0]):
        return None
    operands = [table.args[0], *map(graph.leaf, value.args[1:])]
    rows = graph.emit(relax.Call(value.op, operands, value.attrs))
    graph.define(rows, quant_params, rows)
    graph.values[var] = relax.Call(table.op, [rows, *table.args[1:]], table.attrs, table.ty_args)
    return graph.defer(var, lambda _plain: graph.emit(graph.values[var]))
