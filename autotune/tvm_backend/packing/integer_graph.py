"""The graph of a quantised network while it is rebuilt: its values, and the forms of its quantised tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.options import Activations
from autotune.tvm_backend.expressions import bindings_of, is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.joined_tables import TABLE
from autotune.tvm_backend.graph.permutations import axes_of
from autotune.tvm_backend.isa.available import byte_table
from autotune.tvm_backend.isa.values import LANES, WORD
from autotune.tvm_backend.operators import byte_images as byte_kernels
from autotune.tvm_backend.operators.dynamic_quantisation import dynamic_kernel
from autotune.tvm_backend.operators.element_types import BYTES, LEVELS
from autotune.tvm_backend.packing.dynamic_bytes import DynamicBytes, dynamic_bytes
from autotune.tvm_backend.packing.encodings import PLAIN, Encoding, Forms
from autotune.tvm_backend.packing.lookup_tables import single_number
from autotune.tvm_backend.packing.packed_graph import PackedGraph
from autotune.tvm_backend.packing.quantised_tensors import (
    ByteOperand,
    ComputedParams,
    QuantisedResult,
    QuantisedTensor,
    QuantParams,
    ScaledConstant,
)
from autotune.tvm_backend.types import Expr, IRModule, PrimFunc, Target, Var

Array = npt.NDArray[Any]
VECTOR = 64  # bytes of the widest vectors
_DYNAMIC = ("float32", "uint8")  # of a scale and a zero point
_UNSCALED = QuantParams(np.float32(1), 0, signed=False)  # of bytes whose scale and zero point the graph computes
_SIGN = 128
ROWS = Encoding("plain", dtype=BYTES.dtype)  # unsigned bytes in the layout that the graph has


class IntegerGraph(PackedGraph):
    """Keeps quantised tensors in unsigned bytes, and images of them in chunks.

    Attributes:
        target: The target, whose instructions kernels use.
        activations: What floats are where packed weights multiply them.
        tensors: What is known of the bytes of variables.
    """

    def __init__(self, mod: IRModule, target: Target, activations: Activations) -> None:
        super().__init__(mod)
        self.target = target
        self.activations = activations
        self.tensors: dict[Var, QuantisedTensor] = defaultdict(QuantisedTensor)
        bindings = {item.var: item.value for item in bindings_of(self.function)}
        dynamic = filter(None, (dynamic_bytes(bindings, var) for var in bindings))
        self._dynamic: dict[Var, DynamicBytes] = {made.scale: made for made in dynamic}

    def quant_params(self, var: Expr) -> QuantParams:
        """Return what the bytes of a variable mean that is quantised."""
        meaning = self.tensors[var].quant_params
        assert meaning is not None
        return meaning

    def origin(self, var: Expr) -> tuple[Expr, Array]:
        """Return the quantised value that bytes are a function of, if only of themselves, and one for each of those."""
        return self.tensors[var].table or (var, np.arange(LEVELS))

    def bind(self, var: Var, expr: Expr) -> None:
        super().bind(var, expr)
        self.tensors[var].quant_params = None

    def define(self, var: Var, quant_params: QuantParams, expr: Expr) -> None:
        """Set what the bytes of a variable are, and what they mean."""
        self.bind(var, expr)
        self.tensors[var].quant_params = quant_params

    def quantise_dynamically(self, scale: Expr) -> bool:
        """Compute a dynamic quantisation if a variable is the scale of one. Return whether it is."""
        made = self._dynamic.get(scale)
        if made is None:
            return False
        flat = self.flat(self.leaf(made.values))
        function = self.builder.add_func(dynamic_kernel(static_shape(flat)), "dynamic_quantise")
        types = [relax.TensorType(static_shape(flat), "uint8"), *(relax.TensorType((1,), d) for d in _DYNAMIC)]
        results = self.emit(relax.call_tir(function, [flat], out_ty=types))
        rows, step, point = (self.emit(relax.TupleGetItem(results, index)) for index in range(3))
        rows = self.emit(relax.op.reshape(rows, static_shape(made.bytes)))
        self.define(made.bytes, _UNSCALED, rows)
        self.tensors[made.bytes].computed = ComputedParams(step, point, made.zero_point)
        for var, number in ((made.scale, step), (made.zero_point, point)):
            self.bind(var, self.emit(relax.op.reshape(number, static_shape(var))))
        return True

    def converted(self, var: Var, encoding: Encoding) -> Expr:
        forms = self.forms(var)
        shape = static_shape(var)
        is_signed = self.quant_params(var).signed
        if encoding == PLAIN:
            return self.emit(_with_sign(self.rows(var))) if is_signed else self.rows(var)
        if encoding == ROWS and self.is_image(var):
            return self.unpacked(self.image(var), shape)
        if encoding == ROWS:
            return self.emit(_without_sign(forms[PLAIN])) if is_signed else forms[PLAIN]
        if list(forms) == [PLAIN] and self._is_of_floats(var):
            program = byte_kernels.quantise_kernel(shape, encoding.lanes)
            return self._quantised(var, program, encoding.shape_of(shape))
        return self._packed(self.rows(var), encoding)

    def rows(self, var: Expr) -> Expr:
        """Return a quantised tensor in unsigned bytes, in the layout that the graph has."""
        return self.form(var, ROWS)

    def image(self, var: Expr) -> Expr:
        """Return a quantised tensor (N, C, H, W) with the channels innermost."""
        computed = next((image for encoding, image in self.forms(var).items() if encoding.layout == "image"), None)
        lanes = WORD if static_shape(var)[1] <= WORD else LANES
        return self.form(var, Encoding("image", lanes, BYTES.dtype)) if computed is None else computed

    def wide_image(self, var: Expr) -> Expr:
        """Return an image with as many lanes as the results of layers have, however few its channels are."""
        image = self.image(var)
        wide = Encoding("image", LANES, BYTES.dtype)
        return image if static_shape(image)[-1] == LANES else self._packed(self.rows(var), wide)

    def padded_image(self, var: Expr, padding: Sequence[int]) -> Expr | None:
        """Return an image with its zero point around it, where it can be quantised so; None otherwise.

        It is one of few channels that floats are quantised to, and that only one operator reads.
        """
        shape = static_shape(var)
        few = len(shape) == 4 and shape[1] <= WORD and shape[3] >= LANES
        if not (few and self._is_for_one(var) and self._is_of_floats(var)) or self.is_image(var):
            return None
        top, left, bottom, right = padding
        result = (shape[0], shape[2] + top + bottom, shape[3] + left + right, 1, WORD)
        return self._quantised(var, byte_kernels.quantise_pixels_kernel(shape, padding), result)

    def _is_of_floats(self, var: Expr) -> bool:
        """Whether a variable is quantised from floats."""
        value: Expr = self.values.get(var)
        return op_name(value) == "relax.quantize" and str(value.args[0].ty.dtype) == "float32"

    def _quantised(self, var: Expr, program: PrimFunc, shape: Sequence[int]) -> Expr:
        """Quantise floats straight into an image."""
        operands = [self.leaf(self.values[var].args[0]), self._scale_and_zero(var)]
        return self.kernel(program, "integer_quantise", operands, shape, "uint8")

    def _scale_and_zero(self, var: Expr) -> Expr:
        """The scale and the zero point of bytes, as floats (2,)."""
        computed = self.tensors[var].computed
        if computed is None:
            return floats([self.quant_params(var).scale, self.quant_params(var).zero])
        zero = self.emit(relax.op.astype(computed.zero, "float32"))
        return self.emit(relax.op.concat([computed.scale, zero], axis=0))

    def _packed(self, rows: Expr, encoding: Encoding) -> Expr:
        shape = static_shape(rows)
        moved = self.emit(relax.op.permute_dims(rows, [0, 2, 3, 1]))
        if shape[1] % encoding.lanes:
            moved = self.emit(relax.op.nn.pad(moved, [0, 0, 0, 0, 0, 0, 0, -shape[1] % encoding.lanes]))
        return self.emit(relax.op.reshape(moved, encoding.shape_of(shape)))

    def image_of_rows(self, var: Expr) -> Expr:
        """Return quantised rows as an image of one row."""
        return self.rows_in_chunks(self.rows(var), Encoding("rows", LANES, BYTES.dtype))

    def flat(self, expr: Expr) -> Expr:
        """An expression as rows of a vector each."""
        size = prod(static_shape(expr))
        lanes = next(lanes for lanes in (VECTOR, 32, 16, 8, 4, 2, 1) if size % lanes == 0)
        return self.emit(relax.op.reshape(expr, (size // lanes, lanes)))

    def looked_up(self, data: Expr, table: Array) -> Expr:
        """Return bytes that a table has for others."""
        flat = self.flat(data)
        instructions = byte_table(self.target) if static_shape(flat)[1] == VECTOR else None
        program = byte_kernels.table_kernel(static_shape(flat), instructions)
        operands = [flat, relax.const(table, "uint8")]
        result = self.kernel(program, TABLE, operands, static_shape(flat), "uint8")
        return self.emit(relax.op.reshape(result, static_shape(data)))

    def is_quantised(self, expr: Expr) -> bool:
        """Return whether an expression is a variable of quantised bytes whose scale is always the same."""
        if not isinstance(expr, relax.Var):
            return False
        return self.tensors[expr].quant_params is not None and self.tensors[expr].computed is None

    def is_image(self, var: Expr) -> bool:
        """Return whether a quantised tensor has been computed with the channels innermost."""
        return any(encoding.layout == "image" for encoding in self.forms(var))

    def like(self, one: Expr, other: Expr) -> tuple[bool, Expr, Expr]:
        """Return whether two tensors are taken as images, and both in that form."""
        as_image = any(map(self.is_image, (one, other))) and len(static_shape(one)) == 4
        take = self.wide_image if as_image else self.rows
        return as_image, take(one), take(other)

    def operand(self, expr: Expr) -> ByteOperand | None:
        """Return the bytes that a product multiplies; None for any other expression.

        Args:
            expr: What it multiplies: bytes that are dequantised, or that are 32-bit integers around their zero point.
        """
        inner = self.uncast(expr)
        if inner is expr:
            var = self.quantised_operand(expr)
            if var is None or self.tensors[var].computed is not None:
                return None
            quant_params = self.quant_params(var)
            return ByteOperand(var, _byte(quant_params.zero), floats([quant_params.scale]), quant_params)
        value = self.value(inner)
        if op_name(value) != "relax.dequantize" or not isinstance(value.args[0], relax.Var):
            return None
        var, _, zero = value.args
        computed = self.tensors[var].computed
        if computed is not None and self.unreshaped(zero).same_as(computed.zero_point):
            return ByteOperand(var, computed.zero)
        own = QuantParams.of(value)
        if own is None or computed is not None:
            return None
        defined = self._defined(var, own)
        same = (defined.zero, defined.signed) == (own.zero, own.signed)
        return ByteOperand(var, _byte(own.zero)) if same else None

    def uncast(self, expr: Expr) -> Expr:
        """Return the floats that 32-bit integers are made of, or the reverse; any other expression itself."""
        value = self.value(expr)
        if op_name(value) != "relax.astype":
            return expr
        types = {str(value.ty.dtype), str(value.args[0].ty.dtype)}
        return value.args[0] if types == {"int32", "float32"} else expr

    def _defined(self, var: Expr, quant_params: QuantParams) -> QuantParams:
        """Give bytes that the graph has these parameters, unless they have some. Return those that they have."""
        if self.tensors[var].quant_params is None:
            self.define(var, quant_params, self.plain(var))
        return self.quant_params(var)

    def quantised_operand(self, expr: Expr) -> Expr | None:
        """Return the variable of the bytes that an expression is dequantised from; None for any other expression."""
        if self.is_quantised(expr):
            return expr
        value: Expr = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) != "relax.dequantize" or not isinstance(value.args[0], relax.Var):
            return None
        source = value.args[0]
        quant_params = QuantParams.of(value)
        if quant_params is None:
            return None
        return source if self._defined(source, quant_params) == quant_params else None

    def means_same(self, var: Expr | None, result: QuantisedResult) -> bool:
        """Return whether the bytes of a variable, if it has some, mean in a result what they mean in it."""
        return var is not None and self.quant_params(var) == result.quant_params and not result.has_limits

    def constant(self, expr: Expr) -> ScaledConstant | None:
        """Return the constant that an expression is, also if it is a transposed or reshaped one; else None."""
        value: Expr = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) == "relax.permute_dims":
            inner = self.constant(value.args[0])
            return inner.transposed(axes_of(value)) if inner else None
        return ScaledConstant.of(value)

    def number(self, expr: Expr) -> Array | None:
        """Return the number that an expression of one element always is; else None."""
        constant = self.constant(expr)
        if constant is not None:
            return constant.numbers().reshape(()) if constant.integers.size == 1 else None
        return single_number(expr)

    def vector(self, expr: Expr) -> Array | None:
        """Return the numbers that an expression always is, as float32; else None."""
        constant = self.constant(expr)
        if constant is not None:
            return constant.numbers()
        if is_tensor_constant(expr) and str(expr.ty.dtype) == "float32":
            numbers: Array = values_of(expr)
            return numbers
        return None

    def unreshaped(self, expr: Expr) -> Expr:
        """Return what an expression is reshaped from, or the expression itself."""
        value = self.value(expr)
        return value.args[0] if op_name(value) == "relax.reshape" else expr

    def layer(self, var: Expr) -> Callable[..., Expr] | None:
        """Return what computes a layer that only one operator reads, which may become a part of it; else None."""
        return self.tensors[var].layer if self._is_for_one(var) else None

    def is_read_once(self, var: Expr) -> bool:
        """Return whether one operator reads a value, and once."""
        return len(self._readers.get(var, ())) == 1

    def _is_for_one(self, var: Expr) -> bool:
        """Whether one operator reads a value, and one what that makes of it, as the bytes of a quantisation."""
        return self.is_read_once(var) and self.is_read_once(self._readers[var][0][0])


def in_rows(expr: Expr) -> Forms:
    """Return the encodings of unsigned bytes that were computed in the layout that the graph has."""
    return {ROWS: expr}


def in_image(expr: Expr) -> Forms:
    """Return the encodings of an image of unsigned bytes that was computed in chunks."""
    return {Encoding("image", static_shape(expr)[-1], BYTES.dtype): expr}


def floats(values: Sequence[float | np.float32]) -> Expr:
    """Return a constant of floats."""
    return relax.const(np.array([float(item) for item in values], np.float32), "float32")


def _byte(value: int) -> Expr:
    return relax.const(np.array([value], np.uint8), "uint8")


def limits_of(result: QuantisedResult) -> Expr:
    """Return the limits of a result as kernels take them: its zero point, least and greatest byte."""
    return floats([result.quant_params.zero, *result.limits])


def _with_sign(rows: Expr) -> Expr:
    return relax.op.astype(relax.op.bitwise_xor(rows, relax.const(np.uint8(_SIGN), "uint8")), "int8")


def _without_sign(outer: Expr) -> Expr:
    return relax.op.bitwise_xor(relax.op.astype(outer, "uint8"), relax.const(np.uint8(_SIGN), "uint8"))
