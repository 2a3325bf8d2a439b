"""Replace operators between dequantise and quantise by integer kernels.

A network that was quantised with QDQ operators says of each operator: dequantise the inputs, compute in floats,
quantise the output. Where there is a kernel that goes from bytes to bytes, it takes the place of all three. What has
none stays as it is, in floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.integer import byte_kernels
from autotune.tvm_backend.integer.intrinsics import depthwise_instructions, dot_instructions
from autotune.tvm_backend.integer.kernels import LANES, WORD, Window, convolution_program
from autotune.tvm_backend.integer.products import PackedProduct, pack_convolution, pack_depthwise
from autotune.tvm_backend.integer.quantity import LEVELS, Quantity, ScaledConstant
from autotune.tvm_backend.integer.tables import FunctionOfOne, NoTable, single_number
from autotune.tvm_backend.passes.rewrite import (
    Rewriter,
    is_tensor_constant,
    op_name,
    rewrite_and_clean,
    static_shape,
    variables,
)
from autotune.tvm_backend.types import Expr

Array = npt.NDArray[Any]
_LARGEST = LEVELS - 1
_SIGN = 128


def integer_kernels(mod: Any, target: Any) -> Any:
    """Rewrite `main` so that quantised operators compute in integers.

    Args:
        mod: A module as imported: dequantised constants are not folded yet.
        target: The target, whose instructions the kernels use.

    Returns:
        The rewritten module, or `mod` itself if it has nothing quantised.
    """
    names = {op_name(item.value) for block in mod["main"].body.blocks for item in block.bindings}
    if target.kind.name != "llvm" or "relax.quantize" not in names:
        return mod
    return rewrite_and_clean(mod, lambda module: _Integers(module, target))


@dataclass
class _Forms:
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
class _Product:
    """How a convolution or product was computed, so that an addition after it can become a part of it."""

    call: Callable[..., Expr]
    operands: tuple[Expr, ...]
    quantity: Quantity
    limits: tuple[int, int]


@dataclass(frozen=True)
class _Quantised:
    """A float expression that is quantised: the operator, and the quantity and limits of its result."""

    value: Expr
    quantity: Quantity
    limits: tuple[int, int]
    shape: tuple[int, ...] = field(default=())


class _Integers(Rewriter):
    def __init__(self, mod: Any, target: Any) -> None:
        super().__init__(mod)
        self._target = target
        self._values: dict[Any, Expr] = {}
        self._new: dict[Any, Expr] = {}
        self._forms: dict[Any, _Forms] = {}
        self._quantities: dict[Any, Quantity] = {}
        self._tables: dict[Any, tuple[Expr, Array]] = {}
        self._products: dict[Any, _Product] = {}
        values = [item.value for block in self.function.body.blocks for item in block.bindings]
        self._uses = Counter(var for value in values for var in variables(value))

    def visit(self, var: Expr, value: Expr) -> None:
        self._values[var] = value
        if op_name(value) == "relax.quantize" and (quantity := Quantity.of(value)) is not None:
            self._quantities[var] = quantity
            form = self._integer(var, value, quantity)
            if form is not None:
                self._forms[var] = form
                return
            self._forms[var] = _Forms(outer=self.builder.emit(self.rebuild(value), var.name))
            return
        self._new[var] = self.builder.emit(self.rebuild(value), var.name)

    def plain(self, var: Expr) -> Expr:
        return self.outer(var) if var in self._forms else self._new.get(var, var)

    def bind(self, var: Expr, expr: Expr) -> None:
        self._forms.pop(var, None)
        self._new[var] = expr

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
        value: Any = self._values.get(var)
        if op_name(value) != "relax.quantize" or str(value.args[0].ty.dtype) != "float32":
            return None
        quantity, shape = self._quantities[var], static_shape(var)
        constants = _floats([quantity.scale, quantity.zero])
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

    def quantised_operand(self, expr: Expr) -> Expr | None:
        """Return the variable of the bytes that an expression is dequantised from; None for any other expression."""
        value: Any = self._values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) != "relax.dequantize" or not isinstance(value.args[0], relax.Var):
            return None
        source = value.args[0]
        quantity = Quantity.of(value)
        if quantity is None:
            return None
        if source not in self._forms:
            self._forms[source] = _Forms(outer=self._new.get(source, source))
            self._quantities[source] = quantity
        return source if self._quantities[source] == quantity else None

    def quantity(self, var: Expr) -> Quantity:
        """Return the quantity of the bytes of a variable."""
        return self._quantities[var]

    def constant(self, expr: Expr) -> ScaledConstant | None:
        """Return the constant that an expression is, also if it is a transposed or reshaped one; else None."""
        value: Any = self._values.get(expr) if isinstance(expr, relax.Var) else None
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
        return self._values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def _integer(self, var: Expr, call: Expr, quantity: Quantity) -> _Forms | None:
        """Compute a quantised value in integers; None where there is no kernel for it."""
        shape = static_shape(var)
        if not shape:
            return None
        limits, value = self._peeled(call.args[0], quantity)
        quantised = _Quantised(value, quantity, limits, shape)
        handler = _HANDLERS.get(op_name(value))
        form = handler(self, var, quantised) if handler else None
        return form or self._table(var, call.args[0], quantity)

    def _peeled(self, expr: Expr, quantity: Quantity) -> tuple[tuple[int, int], Expr]:
        """Return the limits that activations set to the bytes of an expression, and what they are applied to."""
        low, high = 0, _LARGEST
        value = self.value(expr)
        while (limits := _activation(value)) is not None:
            least, greatest = (int(item) for item in quantity.bytes_of(np.array(limits, np.float32)))
            low, high = (min(max(item, least), greatest) for item in (low, high))
            value = self.value(value.args[0])
        return (low, high), value

    def _table(self, var: Expr, expr: Expr, quantity: Quantity) -> _Forms | None:
        """Compute a function of one quantised value by a table."""

        def leaf(item: Expr) -> tuple[Expr, Array] | None:
            source = self.quantised_operand(item)
            if source is None:
                return None
            numbers = self.quantity(source).numbers()
            origin, table = self._tables.get(source, (source, np.arange(LEVELS)))
            return origin, numbers[table]

        function = FunctionOfOne(self._values, leaf, self.number)
        try:
            numbers = function(expr)
        except NoTable:
            return None
        if numbers.size != LEVELS or function.source is None or static_shape(function.source) != static_shape(var):
            return None
        table = quantity.bytes_of(np.nan_to_num(numbers, posinf=np.inf, neginf=-np.inf))
        self._tables[var] = function.source, table
        return self._looked_up(function.source, table)

    def _looked_up(self, source: Expr, table: Array) -> _Forms:
        if (table == np.arange(LEVELS)).all():
            found = self._forms[source]
            return _Forms(rows=self.rows(source)) if found.image is None else _Forms(image=found.image)
        is_image = self._forms[source].image is not None
        data = self.image(source) if is_image else self.rows(source)
        flat, shape = self._flat(data), static_shape(data)
        program = byte_kernels.table_kernel(static_shape(flat))
        found = self.kernel(program, "integer_table", [flat, relax.const(table, "uint8")], static_shape(flat), "uint8")
        result = self.emit(relax.op.reshape(found, shape))
        return _Forms(image=result) if is_image else _Forms(rows=result)

    def _flat(self, expr: Expr) -> Expr:
        """An expression as rows of a vector each."""
        size = prod(static_shape(expr))
        lanes = next(lanes for lanes in (64, 32, 16, 8, 4, 2, 1) if size % lanes == 0)
        return self.emit(relax.op.reshape(expr, (size // lanes, lanes)))

    def like(self, one: Expr, other: Expr) -> tuple[bool, Expr, Expr]:
        """Return whether two tensors are taken as images, and both in that form."""
        as_image = any(self._forms[item].image is not None for item in (one, other)) and len(static_shape(one)) == 4
        take = self.image if as_image else self.rows
        return as_image, take(one), take(other)

    def product(self, var: Expr) -> _Product | None:
        """Return how a value was computed that only one operator reads."""
        readers = [item for item, value in self._values.items() if any(one.same_as(var) for one in variables(value))]
        once = len(readers) == 1 and self._uses[var] == 1 and self._uses[readers[0]] == 1
        return self._products.get(var) if once else None

    def remember(self, var: Expr, product: _Product) -> None:
        """Keep how a value was computed."""
        self._products[var] = product

    def convolution(
        self,
        var: Expr,
        packed: PackedProduct,
        data: tuple[Expr, Quantity],
        window: Window,
        quantised: _Quantised,
        *,
        depthwise: bool = False,
    ) -> Expr:
        """Call the kernel of a convolution."""
        point = relax.const(np.array([data[1].zero], np.uint8), "uint8")
        limits = _limits(quantised.quantity, quantised.limits)
        constants = [packed.weight, packed.scale, packed.bias]
        operands = (data[0], *(relax.const(item, str(item.dtype)) for item in constants), point, limits)
        target = self._target
        dots = dot_instructions(target, narrow=packed.narrow)
        instructions = depthwise_instructions(target) if depthwise else dots

        def call(*args: Expr, name: str = "integer_depthwise_conv2d" if depthwise else "integer_conv2d") -> Expr:
            types = [(static_shape(item), str(item.ty.dtype)) for item in args]
            program, shape = convolution_program(types, window, instructions, depthwise=depthwise)
            return self.kernel(program, name, args, shape, "uint8")

        self._products[var] = _Product(call, operands, quantised.quantity, quantised.limits)
        return call(*operands)


_Handler = Callable[[_Integers, Any, _Quantised], "_Forms | None"]


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


def _conv2d(packer: _Integers, var: Expr, quantised: _Quantised, bias: Array | None = None) -> _Forms | None:
    call = quantised.value
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    data = packer.quantised_operand(call.args[0])
    weight = packer.constant(call.args[1])
    if data is None or weight is None or not weight.fits() or weight.axis > 0 or layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    strides, padding, dilation = (
        tuple(int(item) for item in values) for values in (attrs.strides, attrs.padding, attrs.dilation)
    )
    outputs, inner = weight.integers.shape[:2]
    given = packer.quantity(data)
    added = _in_units(bias, weight, given, outputs)
    if added is None:
        return None
    groups, channels = int(attrs.groups), static_shape(data)[1]
    depthwise = groups == channels == outputs > WORD and inner == 1
    if groups != 1 and not depthwise:
        return None
    image = packer.image(data)
    if depthwise:
        packed = pack_depthwise(weight, added, given, quantised.quantity, dilation[1])
        window = Window(quantised.shape[2:], strides, padding, (dilation[0], 1))
    else:
        packed = pack_convolution(weight, added, given, quantised.quantity, static_shape(image)[-1])
        window = Window(quantised.shape[2:], strides, padding, dilation)
    return _Forms(image=packer.convolution(var, packed, (image, given), window, quantised, depthwise=depthwise))


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


def _matmul(packer: _Integers, var: Expr, quantised: _Quantised, bias: Array | None = None) -> _Forms | None:
    """A product of rows with a constant matrix: a convolution of an image of one row with a 1x1 kernel."""
    call = quantised.value
    data = packer.quantised_operand(call.args[0])
    matrix = packer.constant(call.args[1])
    if data is None or matrix is None or matrix.integers.ndim != 2 or matrix.axis == 0 or not matrix.fits():
        return None
    across = matrix.transposed([1, 0])
    weight = ScaledConstant(across.integers[:, :, None, None], across.scale, across.axis)
    inner, outputs = matrix.integers.shape
    given = packer.quantity(data)
    added = _in_units(bias, weight, given, outputs)
    count = prod(quantised.shape[:-1])
    if added is None or len(static_shape(data)) < 2 or not count:
        return None
    rows = packer.rows(data)
    filled = -(-inner // LANES) * LANES
    flat = packer.emit(relax.op.reshape(rows, (count, inner)))
    if filled != inner:
        flat = packer.emit(relax.op.nn.pad(flat, [0, 0, 0, filled - inner]))
    image = packer.emit(relax.op.reshape(flat, (1, 1, count, filled // LANES, LANES)))
    packed = pack_convolution(weight, added, given, quantised.quantity, LANES)
    return _as_rows(packer, packer.convolution(var, packed, (image, given), Window((1, count)), quantised), quantised)


def _as_rows(packer: _Integers, image: Expr, quantised: _Quantised) -> _Forms:
    *rows, columns = quantised.shape
    filled = prod(static_shape(image)[-2:])
    flat = packer.emit(relax.op.reshape(image, (*rows, filled)))
    if filled != columns:
        last = len(rows)
        flat = packer.emit(relax.op.strided_slice(flat, axes=[last], begin=[0], end=[columns]))
    return _Forms(rows=flat)


def _add(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    """A bias after a product, or the sum of two quantised values."""
    for one, other in (quantised.value.args, reversed(list(quantised.value.args))):
        product = packer.value(one)
        handler = {"relax.nn.conv2d": _conv2d, "relax.matmul": _matmul}.get(op_name(product))
        if handler is not None:
            bias = packer.vector(_unreshaped(packer, other))
            inner = _Quantised(product, quantised.quantity, quantised.limits, quantised.shape)
            return None if bias is None else handler(packer, var, inner, bias)
    return _sum(packer, var, quantised) or _channels(packer, quantised)


def _unreshaped(packer: _Integers, expr: Expr) -> Expr:
    value = packer.value(expr)
    return value.args[0] if op_name(value) == "relax.reshape" else expr


def _sum(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    one, other = map(packer.quantised_operand, quantised.value.args)
    if one is None or other is None or static_shape(one) != static_shape(other):
        return None
    quantities = packer.quantity(one), packer.quantity(other)
    return _sum_in_product(packer, (one, other), quantised) or _sum_alone(packer, (one, other), quantities, quantised)


def _sum_constants(one: Quantity, other: Quantity, quantised: _Quantised) -> Expr:
    """As ONNX Runtime computes them: one constant for the three zero points."""
    result = quantised.quantity
    first, second = one.scale / result.scale, other.scale / result.scale
    fixed = np.float32(result.zero) - (first * np.float32(one.zero) + second * np.float32(other.zero))
    return _floats([first, second, fixed, *quantised.limits])


def _sum_alone(
    packer: _Integers, operands: tuple[Expr, Expr], quantities: tuple[Quantity, Quantity], quantised: _Quantised
) -> _Forms:
    is_image, one, other = packer.like(*operands)
    shape = static_shape(one)
    flat = packer._flat(one), packer._flat(other)
    program = byte_kernels.sum_kernel(static_shape(flat[0]))
    constants = _sum_constants(*quantities, quantised)
    found = packer.kernel(program, "integer_sum", [*flat, constants], static_shape(flat[0]), "uint8")
    result = packer.emit(relax.op.reshape(found, shape))
    return _Forms(image=result) if is_image else _Forms(rows=result)


def _sum_in_product(packer: _Integers, operands: tuple[Expr, Expr], quantised: _Quantised) -> _Forms | None:
    """Add to the result of a convolution before it is written."""
    if len(quantised.shape) != 4:
        return None
    for at in (1, 0):
        product = packer.product(operands[at])
        if product is not None:
            other = operands[1 - at]
            constants = _sum_constants(product.quantity, packer.quantity(other), quantised)
            image = packer.image(other)
            return _Forms(image=product.call(*product.operands, image, constants, name="integer_conv2d_add"))
    return None


def _channels(packer: _Integers, quantised: _Quantised) -> _Forms | None:
    """A constant for each channel, added to or multiplied with a quantised value whose channels are innermost."""
    for expr, constant in (quantised.value.args, reversed(list(quantised.value.args))):
        data = packer.quantised_operand(expr)
        numbers = packer.vector(constant)
        if data is None or numbers is None or static_shape(data) != quantised.shape:
            continue
        columns = quantised.shape[-1]
        if numbers.shape[-1:] != (columns,) or numbers.size != columns or columns % LANES:
            return None
        return _scaled_channels(packer, data, numbers.reshape(-1), quantised)
    return None


def _scaled_channels(packer: _Integers, data: Expr, numbers: Array, quantised: _Quantised) -> _Forms:
    given, result, columns = packer.quantity(data), quantised.quantity, quantised.shape[-1]
    zero = np.float32(given.zero)
    if op_name(quantised.value) == "relax.add":
        factor = np.broadcast_to(given.scale / result.scale, (columns,))
        offset = numbers / result.scale - zero * factor
    else:
        factor = given.scale * numbers / result.scale
        offset = -zero * factor
    shape = (prod(quantised.shape[:-1]), columns // LANES, LANES)
    vectors = [relax.const(item.astype(np.float32).reshape(shape[1:]), "float32") for item in (factor, offset)]
    flat = packer.emit(relax.op.reshape(packer.rows(data), shape))
    limits = _limits(result, quantised.limits)
    program = byte_kernels.channel_kernel(shape)
    found = packer.kernel(program, "integer_channels", [flat, *vectors, limits], shape, "uint8")
    return _Forms(rows=packer.emit(relax.op.reshape(found, quantised.shape)))


def _multiply(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    one, other = map(packer.quantised_operand, quantised.value.args)
    if one is None or other is None:
        return _channels(packer, quantised)
    if static_shape(one) != static_shape(other) or one.same_as(other) or _same_origin(packer, one, other):
        return None
    first, second, result = packer.quantity(one), packer.quantity(other), quantised.quantity
    factor = first.scale * second.scale / result.scale
    constants = _floats([first.zero, second.zero, factor, result.zero, *quantised.limits])
    is_image, *operands = packer.like(one, other)
    shape = static_shape(operands[0])
    flat = [packer._flat(item) for item in operands]
    program = byte_kernels.product_kernel(static_shape(flat[0]))
    found = packer.kernel(program, "integer_product", [*flat, constants], static_shape(flat[0]), "uint8")
    made = packer.emit(relax.op.reshape(found, shape))
    return _Forms(image=made) if is_image else _Forms(rows=made)


def _same_origin(packer: _Integers, one: Expr, other: Expr) -> bool:
    """Whether both are functions of one quantised value, so that a table does it."""
    origins = [packer._tables.get(item, (item, None))[0] for item in (one, other)]
    return bool(origins[0].same_as(origins[1]))


def _max_pool(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    call = quantised.value
    data = packer.quantised_operand(call.args[0])
    if data is None or packer.quantity(data) != quantised.quantity or str(call.attrs.layout) != "NCHW":
        return None
    if any(int(item) != 1 for item in call.attrs.dilation) or quantised.limits != (0, _LARGEST):
        return None
    kernel, strides, padding = _pooling(call)
    image = packer.image(data)
    window = Window(quantised.shape[2:], strides, padding)
    program = byte_kernels.max_pool_kernel(static_shape(image), kernel, window)
    shape = (quantised.shape[0], *quantised.shape[2:], *static_shape(image)[3:])
    return _Forms(image=packer.kernel(program, "integer_max_pool", [image], shape, "uint8"))


def _pooling(call: Expr) -> tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    attrs = call.attrs
    high, wide = (int(item) for item in attrs.pool_size)
    return (high, wide), tuple(int(item) for item in attrs.strides), tuple(int(item) for item in attrs.padding)


def _mean(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    call = quantised.value
    shape = static_shape(call.args[0])
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
    if axes != [2, 3] or len(shape) != 4 or not call.attrs.keepdims:
        return None
    return _averaged(packer, quantised, (shape[2], shape[3]), Window((1, 1)))


def _average_pool(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    call = quantised.value
    kernel, strides, padding = _pooling(call)
    plain = str(call.attrs.layout) == "NCHW" and not call.attrs.ceil_mode
    if any(padding) or any(int(item) != 1 for item in call.attrs.dilation) or not plain:
        return None
    return _averaged(packer, quantised, kernel, Window(quantised.shape[2:], strides))


def _adaptive_pool(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    shape = static_shape(quantised.value.args[0])
    if quantised.shape[2:] != (1, 1) or str(quantised.value.attrs.layout) != "NCHW":
        return None
    return _averaged(packer, quantised, (shape[2], shape[3]), Window((1, 1)))


def _averaged(packer: _Integers, quantised: _Quantised, kernel: tuple[int, int], window: Window) -> _Forms | None:
    data = packer.quantised_operand(quantised.value.args[0])
    if data is None:
        return None
    given, result, count = packer.quantity(data), quantised.quantity, prod(kernel)
    factor = given.scale / (result.scale * np.float32(count))
    operands = [packer.image(data), _floats([given.zero * count, factor]), _limits(result, quantised.limits)]
    shape = static_shape(operands[0])
    program = byte_kernels.average_kernel(shape, kernel, window)
    result_shape = (shape[0], *window.size, *shape[3:])
    return _Forms(image=packer.kernel(program, "integer_average", operands, result_shape, "uint8"))


def _concat(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    parts = [packer.quantised_operand(item) for item in _fields(packer, quantised.value.args[0])]
    known = [item for item in parts if item is not None]
    if not parts or len(known) != len(parts) or quantised.limits != (0, _LARGEST):
        return None
    rank = len(quantised.shape)
    axis = int(quantised.value.attrs.axis or 0) % rank
    if rank == 4 and axis == 1 and all(static_shape(item)[1] % LANES == 0 for item in known):
        return _concat_images(packer, known, quantised)
    if any(packer.quantity(item) != quantised.quantity for item in known):
        return None
    return _Forms(rows=packer.emit(relax.op.concat([packer.rows(item) for item in known], axis=axis)))


def _concat_images(packer: _Integers, parts: Sequence[Expr], quantised: _Quantised) -> _Forms:
    images = [packer.image(item) for item in parts]
    quantities = [*(packer.quantity(item) for item in parts), quantised.quantity]
    constants = relax.const(np.array([[item.zero, item.scale] for item in quantities], np.float32), "float32")
    program = byte_kernels.concat_kernel([static_shape(item) for item in images])
    batch, channels, height, width = quantised.shape
    shape = (batch, height, width, channels // LANES, LANES)
    return _Forms(image=packer.kernel(program, "integer_concat", [*images, constants], shape, "uint8"))


def _fields(packer: _Integers, expr: Expr) -> list[Expr]:
    value = packer.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else []


def _moved(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    """An operator that only moves elements moves bytes, if they mean the same before and after."""
    call = quantised.value
    data = packer.quantised_operand(call.args[0])
    if data is None or packer.quantity(data) != quantised.quantity or quantised.limits != (0, _LARGEST):
        return None
    made = relax.Call(call.op, [packer.rows(data), *call.args[1:]], call.attrs, call.ty_args)
    return _Forms(rows=packer.emit(made))


def _resize(packer: _Integers, var: Expr, quantised: _Quantised) -> _Forms | None:
    """Repeat pixels a whole number of times."""
    call = quantised.value
    attrs = call.attrs
    data = packer.quantised_operand(call.args[0])
    if data is None or packer.quantity(data) != quantised.quantity or str(attrs.method) != "nearest_neighbor":
        return None
    before, after = static_shape(data)[2:], quantised.shape[2:]
    factors = tuple(large // small for large, small in zip(after, before, strict=True))
    whole = all(small * factor == large for small, factor, large in zip(before, factors, after, strict=True))
    modes = (str(attrs.coordinate_transformation_mode), str(attrs.rounding_method))
    down = modes in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round"))
    if not whole or not down or (modes[0] == "half_pixel" and max(factors) > 2) or str(attrs.layout) != "NCHW":
        return None
    image = packer.image(data)
    batch, _, _, chunks, lanes = static_shape(image)
    program = byte_kernels.enlarge_kernel(static_shape(image), (factors[0], factors[1]))
    return _Forms(image=packer.kernel(program, "integer_enlarge", [image], (batch, *after, chunks, lanes), "uint8"))


def _with_sign(rows: Expr) -> Expr:
    return relax.op.astype(relax.op.bitwise_xor(rows, relax.const(np.uint8(_SIGN), "uint8")), "int8")


def _without_sign(outer: Expr) -> Expr:
    return relax.op.bitwise_xor(relax.op.astype(outer, "uint8"), relax.const(np.uint8(_SIGN), "uint8"))


def _floats(values: Sequence[Any]) -> Expr:
    return relax.const(np.array([float(item) for item in values], np.float32), "float32")


def _limits(quantity: Quantity, limits: tuple[int, int]) -> Expr:
    return _floats([quantity.zero, *limits])


_HANDLERS: Mapping[str, _Handler] = {
    "relax.nn.conv2d": _conv2d,
    "relax.matmul": _matmul,
    "relax.add": _add,
    "relax.multiply": _multiply,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.avg_pool2d": _average_pool,
    "relax.nn.adaptive_avg_pool2d": _adaptive_pool,
    "relax.mean": _mean,
    "relax.concat": _concat,
    "relax.reshape": _moved,
    "relax.permute_dims": _moved,
    "relax.strided_slice": _moved,
    "relax.image.resize2d": _resize,
}
