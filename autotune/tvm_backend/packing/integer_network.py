"""Replace operators between dequantise and quantise by integer kernels.

A network that was quantised with QDQ operators says of each operator: dequantise the inputs, compute in floats,
quantise the output. Where there is a kernel that goes from bytes to bytes, it takes the place of all three. What has
none stays as it is, in floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from autotune.options import Activations
from autotune.tvm_backend.expressions import bindings_of, op_name, static_shape
from autotune.tvm_backend.graph.rewrite import rewrite_and_clean
from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.packing.block_quantised import BlockMatrix, block_matrix, block_product
from autotune.tvm_backend.packing.encodings import Forms, Result
from autotune.tvm_backend.packing.image_operators import ImageOperator
from autotune.tvm_backend.packing.integer_elementwise import add, channels_of_image, multiply, table
from autotune.tvm_backend.packing.integer_graph import IntegerGraph
from autotune.tvm_backend.packing.integer_layers import (
    ScaledLayer,
    int32_result,
    linear_layer,
    requantised_layer,
    scaled_layer,
    scaled_result,
)
from autotune.tvm_backend.packing.integer_moves import concat, moved_image, moved_rows, rows_of_bytes
from autotune.tvm_backend.packing.lookup_tables import single_number
from autotune.tvm_backend.packing.packed_graph import OPERATORS, Handler
from autotune.tvm_backend.packing.quantised_tensors import QuantisedResult, QuantParams
from autotune.tvm_backend.types import Call, Expr, IRModule, Target, Var


def integer_kernels(mod: IRModule, target: Target, activations: Activations = "fp32") -> IRModule:
    """Rewrite `main` so that quantised operators compute in integers.

    Args:
        mod: A module as imported: dequantised constants are not folded yet.
        target: The target, whose instructions the kernels use.
        activations: What floats are where packed weights multiply them.

    Returns:
        The rewritten module, or `mod` itself if it has nothing quantised.
    """
    names = {op_name(item.value) for item in bindings_of(mod["main"])}
    if target.kind.name != "llvm" or "relax.dequantize" not in names:
        return mod
    return rewrite_and_clean(mod, lambda module: _Integers(module, target, activations))


class _Integers(IntegerGraph):
    handlers: ClassVar[Mapping[str, Handler]] = {
        **OPERATORS,
        "relax.nn.conv2d": requantised_layer,
        "relax.matmul": requantised_layer,
        "relax.add": add,
        "relax.multiply": multiply,
        "relax.concat": concat,
        "relax.reshape": moved_rows,
        "relax.permute_dims": moved_rows,
        "relax.strided_slice": moved_rows,
    }

    def __init__(self, mod: IRModule, target: Target, activations: Activations) -> None:
        super().__init__(mod, target, activations)
        self._scaled: dict[Var, ScaledLayer] = {}

    def packed_forms(self, result: Result, value: Expr) -> Forms | None:
        if self.quantise_dynamically(result.var):
            return self.forms(result.var)
        quant_params = QuantParams.of(value) if op_name(value) == "relax.quantize" else _kept_quant_params(self, value)
        if quant_params is None:
            return self._floats(result.var, value)
        forms = self._bytes(result, value, quant_params) if result.shape else None
        self.tensors[result.var].quant_params = quant_params
        return forms

    def _bytes(self, result: Result, call: Call, quant_params: QuantParams) -> Forms | None:
        """Compute a quantised value in integers; None where there is no kernel for it."""
        if op_name(call) != "relax.quantize":
            return super().packed_forms(QuantisedResult(result.var, result.shape, quant_params), call)
        limits, value = _without_activations(self, call.args[0], quant_params)
        whole = QuantisedResult(result.var, result.shape, quant_params, limits)
        forms = super().packed_forms(whole, value) or channels_of_image(self, value, whole)
        return forms or table(self, call.args[0], whole)

    def _floats(self, var: Var, value: Expr) -> Forms | None:
        """Compute floats, or sums, of bytes in integers, when they are read; None if a value is something else."""
        rows = rows_of_bytes(self, var, value)
        if rows is not None:
            return rows
        if (scaled := scaled_layer(self, value, self._scaled)) is not None:
            self._scaled[var] = scaled
            return self.defer(var, lambda _plain: scaled_result(self, scaled))
        if (layer := linear_layer(self, value)) is not None and str(value.ty.dtype) == "int32":
            return self.defer(var, lambda _plain: int32_result(self, layer))
        if (matrix := _packed_operand(self, value)) is not None:
            return self.defer(var, lambda _plain: block_product(self, value, matrix))
        if op_name(value) == "relax.astype":
            return self.defer(var, lambda _plain: self.builder.emit(self.rebuild(value), var.name))
        return None

    def elementwise(self, call: Call, result: Result) -> Forms | None:
        return None  # a chain of functions of one value becomes one table, whatever is between them

    def moved(self, operator: ImageOperator, result: Result) -> Forms | None:
        assert isinstance(result, QuantisedResult)
        return moved_image(self, operator, result)


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


def _without_activations(graph: IntegerGraph, expr: Expr, quant_params: QuantParams) -> tuple[tuple[int, int], Expr]:
    """Return the limits that activations set to the bytes of an expression, and what they are applied to."""
    low = 0
    high = LEVELS - 1
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


# Those that bytes go through as they are.
_OF_BYTES = frozenset({"relax.nn.max_pool2d", "relax.reshape", "relax.permute_dims", "relax.strided_slice"})
