"""Replace operators between dequantise and quantise by integer kernels.

A network that was quantised with QDQ operators says of each operator: dequantise the inputs, compute in floats,
quantise the output. Where there is a kernel that goes from bytes to bytes, it takes the place of all three. What has
none stays as it is, in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.graph.rewrite import rewrite_and_clean
from autotune.tvm_backend.packing.block_quantised import BlockMatrix, block_matrix, block_product
from autotune.tvm_backend.packing.image_operators import POOLS
from autotune.tvm_backend.packing.integer_elementwise import add, channels_of_image, multiply, table
from autotune.tvm_backend.packing.integer_graph import MAX_BYTE, IntegerGraph
from autotune.tvm_backend.packing.integer_layers import (
    ScaledLayer,
    int32_result,
    linear_layer,
    requantised_layer,
    scaled_layer,
    scaled_result,
)
from autotune.tvm_backend.packing.integer_moves import concat, moved, part, resize, rows_of_bytes
from autotune.tvm_backend.packing.integer_pools import pool
from autotune.tvm_backend.packing.lookup_tables import single_number
from autotune.tvm_backend.packing.quant_params import QuantParams
from autotune.tvm_backend.packing.quantised_tensors import Forms, Quantised
from autotune.tvm_backend.types import Expr, IRModule, Target, Var


def integer_kernels(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that quantised operators compute in integers.

    Args:
        mod: A module as imported: dequantised constants are not folded yet.
        target: The target, whose instructions the kernels use.

    Returns:
        The rewritten module, or `mod` itself if it has nothing quantised.
    """
    names = {op_name(item.value) for block in mod["main"].body.blocks for item in block.bindings}
    if target.kind.name != "llvm" or "relax.dequantize" not in names:
        return mod
    return rewrite_and_clean(mod, lambda module: _Integers(module, target))


class _Integers(IntegerGraph):
    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod, target)
        self._scaled: dict[Var, ScaledLayer] = {}

    def visit(self, var: Expr, value: Expr) -> None:
        self.values[var] = value
        if self.is_defined(var) or self.quantise_dynamically(var):
            return
        quant_params = QuantParams.of(value) if op_name(value) == "relax.quantize" else _kept_quant_params(self, value)
        if quant_params is not None:
            form = _integer(self, var, value, quant_params)
            self.define(var, quant_params, form or Forms(outer=self.builder.emit(self.rebuild(value), var.name)))
        elif rows_of_bytes(self, var, value):
            return
        elif (scaled := scaled_layer(self, value, self._scaled)) is not None:
            self._scaled[var] = scaled
            self.defer(var, lambda: scaled_result(self, scaled))
        elif (layer := linear_layer(self, value)) is not None and str(value.ty.dtype) == "int32":
            self.defer(var, lambda: int32_result(self, layer))
        elif (matrix := _packed_operand(self, value)) is not None:
            self.defer(var, lambda: block_product(self, value, matrix))
        elif op_name(value) == "relax.astype":
            self.defer(var, lambda: self.builder.emit(self.rebuild(value), var.name))
        else:
            self.bind(var, self.builder.emit(self.rebuild(value), var.name))


def _packed_operand(graph: IntegerGraph, value: Expr) -> BlockMatrix | None:
    """Return the constant matrix of a product of floats that has been quantised; None for any other value."""
    if op_name(value) != "relax.matmul" or str(value.ty.dtype) != "float32" or not static_shape(value):
        return None
    return block_matrix(graph, value.args[1]) if static_shape(value.args[0]) else None


def _kept_quant_params(graph: IntegerGraph, value: Expr) -> QuantParams | None:
    """Return the parameters of the result of an operator on quantised bytes that changes none; None for any other."""
    if op_name(value) not in _OF_BYTES or not graph.is_quantised(value.args[0]):
        return None
    return graph.quant_params(value.args[0])


def _integer(graph: IntegerGraph, var: Expr, call: Expr, quant_params: QuantParams) -> Forms | None:
    """Compute a quantised value in integers; None where there is no kernel for it."""
    shape = static_shape(var)
    if not shape:
        return None
    if op_name(call) != "relax.quantize":
        return _HANDLERS[op_name(call)](graph, var, Quantised(call, quant_params, (0, MAX_BYTE), shape))
    limits, value = _without_activations(graph, call.args[0], quant_params)
    handler = part if isinstance(value, relax.TupleGetItem) else _HANDLERS.get(op_name(value))
    form = handler(graph, var, Quantised(value, quant_params, limits, shape)) if handler else None
    form = form or channels_of_image(graph, Quantised(value, quant_params, limits, shape))
    return form or table(graph, var, call.args[0], quant_params)


def _without_activations(graph: IntegerGraph, expr: Expr, quant_params: QuantParams) -> tuple[tuple[int, int], Expr]:
    """Return the limits that activations set to the bytes of an expression, and what they are applied to."""
    low = 0
    high = MAX_BYTE
    value = graph.value(expr)
    while (limits := _activation(value)) is not None:
        least, greatest = (int(item) for item in quant_params.bytes_of(np.array(limits, np.float32)))
        low, high = (min(max(item, low), high) for item in (least, greatest))  # what is behind has the last word
        value = graph.value(value.args[0])
    return (low, high), value


def _activation(value: Expr) -> tuple[float, float] | None:
    """Return the limits that an activation sets to its operand; None for another operator."""
    name = op_name(value)
    if name == "relax.nn.relu":
        return 0.0, np.inf
    if name == "relax.nn.relu6":
        return 0.0, 6.0
    if name == "relax.clip":
        return float(value.args[1].value), float(value.args[2].value)
    if name in ("relax.maximum", "relax.minimum"):
        bound = single_number(value.args[1])
        if bound is not None:
            return (float(bound), np.inf) if name == "relax.maximum" else (-np.inf, float(bound))
    return None


# What computes an operator: from the graph, the variable of the result and the operator to the result.
_Handler = Callable[[IntegerGraph, Var, Quantised], Forms | None]
_HANDLERS: Mapping[str, _Handler] = {
    "relax.nn.conv2d": requantised_layer,
    "relax.matmul": requantised_layer,
    "relax.add": add,
    "relax.multiply": multiply,
    **dict.fromkeys(POOLS, pool),
    "relax.concat": concat,
    "relax.reshape": moved,
    "relax.permute_dims": moved,
    "relax.strided_slice": moved,
    "relax.image.resize2d": resize,
}
# Those that bytes go through as they are.
_OF_BYTES = frozenset({"relax.nn.max_pool2d", "relax.reshape", "relax.permute_dims", "relax.strided_slice"})
