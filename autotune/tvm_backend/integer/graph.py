"""The graph of a quantised network while it is rebuilt: its values, and the forms of its quantised tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.integer import byte_kernels
from autotune.tvm_backend.integer.kernels import LANES, WORD
from autotune.tvm_backend.integer.quantity import LEVELS, Quantity, ScaledConstant
from autotune.tvm_backend.integer.tables import single_number
from autotune.tvm_backend.passes.rewrite import Rewriter, is_tensor_constant, op_name, static_shape, variables
from autotune.tvm_backend.types import Expr

Array = npt.NDArray[Any]
LARGEST = LEVELS - 1
_SIGN = 128


@dataclass
class Forms:
    """The forms of a quantised tensor that there are so far.

    Attributes:
        outer: As the graph has it.
        rows: Unsigned bytes in the same layout.
        image: Unsigned bytes with the channels innermost.
    """

    outer: Expr = None
    rows: Expr = None
    image: Expr = None


@dataclass(frozen=True)
class Product:
    """How a convolution or product was computed, so that an addition after it can become a part of it."""

    call: Callable[..., Expr]
    operands: tuple[Expr, ...]
    quantity: Quantity
    limits: tuple[int, int]


@dataclass(frozen=True)
class Quantised:
    """A float expression that is quantised: the operator, and the quantity and limits of its result."""

    value: Expr
    quantity: Quantity
    limits: tuple[int, int]
    shape: tuple[int, ...] = field(default=())


class IntegerGraph(Rewriter):
    """Rebuilds `main`, and keeps each quantised tensor in the forms that operators ask for."""

    def __init__(self, mod: Any, target: Any) -> None:
        super().__init__(mod)
        self.target = target
        self.values: dict[Any, Expr] = {}
        self._new: dict[Any, Expr] = {}
        self._forms: dict[Any, Forms] = {}
        self._quantities: dict[Any, Quantity] = {}
        self._products: dict[Any, Product] = {}
        self.tables: dict[Any, tuple[Expr, Array]] = {}
        values = [item.value for block in self.function.body.blocks for item in block.bindings]
        self._uses = Counter(var for value in values for var in variables(value))

    def plain(self, var: Expr) -> Expr:
        return self.outer(var) if var in self._forms else self._new.get(var, var)

    def bind(self, var: Expr, expr: Expr) -> None:
        self._forms.pop(var, None)
        self._new[var] = expr

    def define(self, var: Expr, quantity: Quantity, forms: Forms) -> None:
        """Set what a quantised tensor is."""
        self._quantities[var] = quantity
        self._forms[var] = forms

    def outer(self, var: Expr) -> Expr:
        """Return a quantised tensor as the graph has it."""
        forms = self._forms[var]
        if forms.outer is None:
            rows = self.rows(var)
            forms.outer = self.emit(_with_sign(rows)) if self._quantities[var].signed else rows
        return forms.outer

    def rows(self, var: Expr) -> Expr:
        """Return a quantised tensor in unsigned bytes, in the layout that the graph has."""
        forms = self._forms[var]
        if forms.rows is None and forms.image is None:
            forms.rows = self.emit(_without_sign(forms.outer)) if self._quantities[var].signed else forms.outer
        elif forms.rows is None:
            forms.rows = self._unpacked(forms.image, static_shape(var))
        return forms.rows

    def image(self, var: Expr) -> Expr:
        """Return a quantised tensor (N, C, H, W) with the channels innermost."""
        forms = self._forms[var]
        if forms.image is None:
            shape = static_shape(var)
            lanes = WORD if shape[1] <= WORD else LANES
            direct = self._quantised_image(var, lanes)
            forms.image = self._packed(self.rows(var), shape, lanes) if direct is None else direct
        return forms.image

    def emit(self, expr: Expr) -> Expr:
        """Bind an expression."""
        return self.builder.emit(expr)

    def kernel(self, program: Any, name: str, operands: Sequence[Expr], shape: Sequence[int], dtype: str) -> Expr:
        """Call a scheduled program."""
        function = self.builder.add_func(program, name)
        return self.emit(relax.call_tir(function, list(operands), out_ty=relax.TensorType(tuple(shape), dtype)))

    def _quantised_image(self, var: Expr, lanes: int) -> Expr | None:
        """Quantise floats straight into an image."""
        value: Any = self.values.get(var)
        if op_name(value) != "relax.quantize" or str(value.args[0].ty.dtype) != "float32":
            return None
        quantity, shape = self._quantities[var], static_shape(var)
        constants = floats([quantity.scale, quantity.zero])
        program = byte_kernels.quantise_kernel(shape, lanes)
        result = (shape[0], *shape[2:], -(-shape[1] // lanes), lanes)
        return self.kernel(program, "integer_quantise", [self.leaf(value.args[0]), constants], result, "uint8")

    def _packed(self, rows: Expr, shape: Sequence[int], lanes: int) -> Expr:
        batch, channels, height, width = shape
        filled = -(-channels // lanes) * lanes
        moved = self.emit(relax.op.permute_dims(rows, [0, 2, 3, 1]))
        if filled != channels:
            moved = self.emit(relax.op.nn.pad(moved, [0, 0, 0, 0, 0, 0, 0, filled - channels]))
        return self.emit(relax.op.reshape(moved, (batch, height, width, filled // lanes, lanes)))

    def _unpacked(self, image: Expr, shape: tuple[int, ...]) -> Expr:
        batch, height, width, chunks, lanes = static_shape(image)
        if len(shape) != 4:  # rows that were computed as an image of one row
            return self._cut(self.emit(relax.op.reshape(image, (*shape[:-1], chunks * lanes))), shape)
        flat = self.emit(relax.op.reshape(image, (batch, height, width, chunks * lanes)))
        cut = self._cut(flat, (batch, height, width, shape[1]))
        if height == width == 1:
            return self.emit(relax.op.reshape(cut, shape))
        return self.emit(relax.op.permute_dims(cut, [0, 3, 1, 2]))

    def _cut(self, expr: Expr, shape: Sequence[int]) -> Expr:
        """Drop the padding of the last axis."""
        last = len(shape) - 1
        if static_shape(expr)[last] == shape[last]:
            return expr
        return self.emit(relax.op.strided_slice(expr, axes=[last], begin=[0], end=[shape[last]]))

    def flat(self, expr: Expr) -> Expr:
        """An expression as rows of a vector each."""
        size = prod(static_shape(expr))
        lanes = next(lanes for lanes in (64, 32, 16, 8, 4, 2, 1) if size % lanes == 0)
        return self.emit(relax.op.reshape(expr, (size // lanes, lanes)))

    def is_image(self, var: Expr) -> bool:
        """Return whether a quantised tensor has been computed with the channels innermost."""
        return self._forms[var].image is not None

    def like(self, one: Expr, other: Expr) -> tuple[bool, Expr, Expr]:
        """Return whether two tensors are taken as images, and both in that form."""
        as_image = any(map(self.is_image, (one, other))) and len(static_shape(one)) == 4
        take = self.image if as_image else self.rows
        return as_image, take(one), take(other)

    def quantised_operand(self, expr: Expr) -> Expr | None:
        """Return the variable of the bytes that an expression is dequantised from; None for any other expression."""
        value: Any = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) != "relax.dequantize" or not isinstance(value.args[0], relax.Var):
            return None
        source = value.args[0]
        quantity = Quantity.of(value)
        if quantity is None:
            return None
        if source not in self._forms:
            self._forms[source] = Forms(outer=self._new.get(source, source))
            self._quantities[source] = quantity
        return source if self._quantities[source] == quantity else None

    def quantity(self, var: Expr) -> Quantity:
        """Return the quantity of the bytes of a variable."""
        return self._quantities[var]

    def constant(self, expr: Expr) -> ScaledConstant | None:
        """Return the constant that an expression is, also if it is a transposed or reshaped one; else None."""
        value: Any = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) == "relax.permute_dims":
            inner = self.constant(value.args[0])
            rank = len(static_shape(value))
            axes = [int(axis) for axis in value.attrs.axes] if value.attrs.axes else list(range(rank))[::-1]
            return inner.transposed(axes) if inner else None
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
            numbers: Array = expr.value.numpy()
            return numbers
        return None

    def value(self, expr: Expr) -> Expr:
        """Return what a variable is bound to, or the expression itself."""
        return self.values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def product(self, var: Expr) -> Product | None:
        """Return how a value was computed that only one operator reads."""
        readers = [item for item, value in self.values.items() if any(one.same_as(var) for one in variables(value))]
        once = len(readers) == 1 and self._uses[var] == 1 and self._uses[readers[0]] == 1
        return self._products.get(var) if once else None

    def remember(self, var: Expr, product: Product) -> None:
        """Keep how a value was computed."""
        self._products[var] = product


def floats(values: Sequence[Any]) -> Expr:
    """Return a constant of floats."""
    return relax.const(np.array([float(item) for item in values], np.float32), "float32")


def limits_of(quantity: Quantity, limits: tuple[int, int]) -> Expr:
    """Return the limits of a result as kernels take them: its zero point, least and greatest byte."""
    return floats([quantity.zero, *limits])


def _with_sign(rows: Expr) -> Expr:
    return relax.op.astype(relax.op.bitwise_xor(rows, relax.const(np.uint8(_SIGN), "uint8")), "int8")


def _without_sign(outer: Expr) -> Expr:
    return relax.op.bitwise_xor(relax.op.astype(outer, "uint8"), relax.const(np.uint8(_SIGN), "uint8"))
