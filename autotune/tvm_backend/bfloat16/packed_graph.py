"""Compute convolutions and products of a graph in bfloat16, and what lies between them on what they write.

A tensor is kept as an image of bfloat16 for as long as operators have kernels for it. Any other operator gets it in
float32, in the layout that the graph has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te

from autotune.tvm_backend.bfloat16 import programs
from autotune.tvm_backend.bfloat16.elements import DTYPE, rounded
from autotune.tvm_backend.bfloat16.expression import FUNCTIONS, Elementwise, Kernel, Node, Product, inlined
from autotune.tvm_backend.bfloat16.instructions import computes_bfloat16, dot_instructions
from autotune.tvm_backend.bfloat16.programs import LANES, PAIR, number
from autotune.tvm_backend.integer.kernels import Window
from autotune.tvm_backend.passes.rewrite import (
    Rewriter,
    is_tensor_constant,
    op_name,
    plain_convolution,
    rewrite_and_clean,
    static_shape,
    variables,
)
from autotune.tvm_backend.types import Call, Expr, IRModule, PrimExpr, PrimFunc, Target, TensorExpr, Var

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_FLOAT = "float32"
_FEW_CHANNELS = 4
_FEW_ROWS = 8  # of a product that is bound by reading its weights
_MANY_WEIGHTS = 2**20
_SHORT_ROW = 8
_MOST_PIXELS = 64  # of an image that is computed as one row: a tile has no more
_COPIED_CHANNELS = 64  # pixels are copied by so many at once


def bfloat16_kernels(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that convolutions and products with constants compute in bfloat16, with sums in float32.

    On a CPU without instructions for it, only products that are bound by reading their weights do.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
        target: The target, whose instructions the kernels use.
    """
    return rewrite_and_clean(mod, lambda module: _Rewriter(module, target))


@dataclass
class _Tensor:
    """What is known of a variable of the graph.

    Attributes:
        shape: Its shape in the graph.
        is_image: Whether its second axis has the channels, and not its last.
        plain: Its value as the graph has it.
        packed: Its values as images (N, H, W, C / b, b), by type and b.
    """

    shape: Shape
    is_image: bool
    plain: Expr = None
    packed: dict[tuple[str, int], Expr] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        return self.shape[1 if self.is_image else -1]

    def packed_shape(self, lanes: int = LANES) -> Shape:
        chunks = -(-self.channels // lanes)
        if self.is_image:
            return (self.shape[0], *self.shape[2:], chunks, lanes)
        return (1, 1, prod(self.shape[:-1]), chunks, lanes)


class _Rewriter(Rewriter):
    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target
        self.everywhere = computes_bfloat16(target)
        self._tensors: dict[Var, _Tensor] = {}
        self._nodes: dict[Var, Node] = {}
        self._values: dict[Var, Expr] = {}
        values = [item.value for block in self.function.body.blocks for item in block.bindings]
        self._uses = Counter(var for value in (*values, self.function.body.body) for var in variables(value))

    def visit(self, var: Var, value: Expr) -> None:
        self._values[var] = value
        shape = static_shape(value)
        handler = _HANDLERS.get(op_name(value))
        floats = shape and str(value.ty.dtype) == _FLOAT and all(shape)
        made = handler(self, value) if handler and floats else None
        if made is None:
            self._tensors[var] = _Tensor(shape, len(shape) == 4, self.builder.emit(self.rebuild(value), var.name))
            return
        self._nodes[var], is_image = made
        self._tensors[var] = _Tensor(shape, is_image)

    def plain(self, var: Var) -> Expr:
        tensor = self._tensors.get(var)
        if tensor is None:
            return var
        if tensor.plain is None:
            tensor.plain = self._unpacked(self.packed(var, _FLOAT), tensor)
        return tensor.plain

    def bind(self, var: Var, expr: Expr) -> None:
        self._nodes.pop(var, None)
        shape = static_shape(expr)
        self._tensors[var] = _Tensor(shape, len(shape) == 4, expr)

    def tensor(self, var: Var) -> _Tensor:
        """Return what is known of a variable, which may be a parameter."""
        if var not in self._tensors:
            shape = static_shape(var)
            self._tensors[var] = _Tensor(shape, len(shape) == 4, var)
        return self._tensors[var]

    def has_layout(self, var: Var, *, is_image: bool) -> bool:
        """Return whether a variable is an image, or rows. One that has no packed form yet may be either."""
        tensor = self.tensor(var)
        if var not in self._nodes and not tensor.packed:
            tensor.is_image = is_image and len(tensor.shape) == 4
        return tensor.is_image == is_image

    def is_packed(self, expr: Expr, *, is_image: bool) -> bool:
        """Return whether an expression is a variable that has, or will have, a packed form."""
        return expr in self._nodes and self.tensor(expr).is_image == is_image

    def packed(self, var: Var, dtype: str = DTYPE, lanes: int = LANES) -> Expr:
        """Return a variable as an image of a type. A kernel computes it if there is none yet."""
        tensor = self.tensor(var)
        if (dtype, lanes) not in tensor.packed:
            tensor.packed[dtype, lanes] = self._make_packed(var, tensor, dtype, lanes)
        return tensor.packed[dtype, lanes]

    def emit(self, expr: Expr) -> Expr:
        """Bind an expression."""
        return self.builder.emit(expr)

    def kernel(self, program: PrimFunc, name: str, operands: Sequence[Expr], shape: Shape, dtype: str = DTYPE) -> Expr:
        """Call a program."""
        function = self.builder.add_func(program, name)
        return self.emit(relax.call_tir(function, list(operands), out_ty=relax.TensorType(shape, dtype)))

    def _make_packed(self, var: Var, tensor: _Tensor, dtype: str, lanes: int) -> Expr:
        node = self._nodes.get(var)
        others = [image for (_, block), image in tensor.packed.items() if block == lanes]
        if others:
            return self._converted(others[0], dtype)
        if node is None or tensor.plain is not None:
            return self._pack(tensor, dtype, lanes)
        if isinstance(node, Kernel):
            made = node.call()
            return made if str(made.ty.dtype) == dtype else self._converted(made, dtype)
        return self._computed(var, tensor, dtype)

    def _converted(self, image: Expr, dtype: str) -> Expr:
        data = _placeholder(image, "data")
        shape = static_shape(image)
        program = programs.elementwise_program([data], shape, lambda *at: number(data, *at), dtype)
        return self.kernel(program, "bfloat16_convert", [image], shape, dtype)

    def _pack(self, tensor: _Tensor, dtype: str, lanes: int) -> Expr:
        if tensor.is_image and len(tensor.shape) == 4:
            image = self.kernel(
                programs.pack_program(tensor.shape, lanes), "bfloat16_pack", [tensor.plain], tensor.packed_shape(lanes)
            )
            return image if dtype == DTYPE else self._converted(image, dtype)
        rows, channels = prod(tensor.shape[:-1]), tensor.channels
        flat = self.emit(relax.op.reshape(tensor.plain, (rows, channels)))
        if channels % LANES:
            flat = self.emit(relax.op.nn.pad(flat, [0, 0, 0, -channels % LANES]))
        image = self.emit(relax.op.reshape(flat, tensor.packed_shape()))
        return image if dtype == _FLOAT else self._converted(image, dtype)

    def _unpacked(self, image: Expr, tensor: _Tensor) -> Expr:
        """An image in the layout that the graph has."""
        filled = prod(static_shape(image)[-2:])
        if not tensor.is_image:
            return self._cut(self.emit(relax.op.reshape(image, (*tensor.shape[:-1], filled))), tensor.channels)
        batch, channels, height, width = tensor.shape
        cut = self._cut(self.emit(relax.op.reshape(image, (batch, height, width, filled))), channels)
        if height == width == 1:
            return self.emit(relax.op.reshape(cut, tensor.shape))
        return self.emit(relax.op.permute_dims(cut, [0, 3, 1, 2]))

    def _cut(self, expr: Expr, size: int) -> Expr:
        """Drop the padding of the last axis."""
        shape = static_shape(expr)
        last = len(shape) - 1
        if shape[last] == size:
            return expr
        return self.emit(relax.op.strided_slice(expr, axes=[last], begin=[0], end=[size]))

    def _computed(self, root: Var, tensor: _Tensor, dtype: str) -> Expr:
        """Compute a variable, and what only it needs, by one kernel."""

        def fits(var: Var) -> bool:
            other = self.tensor(var)
            done = other.packed or other.plain is not None
            return not done and (other.shape, other.is_image) == (tensor.shape, tensor.is_image)

        chosen = inlined(root, self._nodes, fits, self._uses)
        arguments = _Arguments(self, tensor, {var: self._nodes[var] for var in chosen}, tensor.packed_shape())
        product = next((node for node in arguments.nodes.values() if isinstance(node, Product)), None)
        shape = tensor.packed_shape()
        if product is None:
            element = arguments.element(root, None)
            program = programs.elementwise_program(arguments.placeholders, shape, element, dtype)
            return self.kernel(program, "bfloat16_elementwise", arguments.operands, shape, dtype)
        sums = product.sums(*(arguments.add(item) for item in product.operands()))
        arguments.shape = tuple(map(int, sums.shape))
        element = arguments.element(root, sums)
        program = programs.product_program(arguments.placeholders, sums, element, dtype)
        image = self.kernel(program, product.name, arguments.operands, arguments.shape, dtype)
        return image if static_shape(image) == shape else self.emit(relax.op.reshape(image, shape))


@dataclass
class _Arguments:
    """The arguments of a kernel, as it collects them.

    Attributes:
        rewriter: Packs them.
        tensor: The result of the kernel.
        nodes: What the kernel computes, by variable.
        shape: In which it computes the result.
    """

    rewriter: _Rewriter
    tensor: _Tensor
    nodes: Mapping[Var, Node]
    shape: Shape
    operands: list[Expr] = field(default_factory=list)
    placeholders: list[TensorExpr] = field(default_factory=list)

    def add(self, operand: Expr) -> TensorExpr:
        """Add an argument, unless it is one already, and return its placeholder."""
        for one, placeholder in zip(self.operands, self.placeholders, strict=True):
            if one.same_as(operand):
                return placeholder
        self.operands.append(operand)
        self.placeholders.append(_placeholder(operand, f"p{len(self.placeholders)}"))
        return self.placeholders[-1]

    def element(self, var: Var, sums: TensorExpr | None) -> Callable[..., PrimExpr]:
        """Return what computes an element of a variable, from the sums of a product if it depends on one."""
        node = self.nodes[var]
        if isinstance(node, Product):
            assert sums is not None
            return lambda *at: sums[at]
        assert isinstance(node, Elementwise)
        elements = [self._operand(item, sums) for item in node.operands]
        return lambda *at: node.function(*(element(*at) for element in elements))

    def _operand(self, operand: Expr | float, sums: TensorExpr | None) -> Callable[..., PrimExpr]:
        if isinstance(operand, float):
            return lambda *_at: te.const(operand, _FLOAT)
        if not isinstance(operand, relax.Var):
            vectors = self.add(_channels(operand, self.tensor))
            return lambda *at: vectors[at[-2:]]
        if operand in self.nodes:
            return self.element(operand, sums)
        expr = self._image(operand)
        if self.rewriter.tensor(operand).shape != self.tensor.shape:
            pixel = self.add(expr)
            return lambda n, _y, _x, *channel: number(pixel, n, 0, 0, *channel)
        same = static_shape(expr) == self.shape
        image = self.add(expr if same else self.rewriter.emit(relax.op.reshape(expr, self.shape)))
        return lambda *at: number(image, *at)

    def _image(self, var: Var) -> Expr:
        """An operand as it is there already; otherwise as bfloat16."""
        tensor = self.rewriter.tensor(var)
        rows = not tensor.is_image and tensor.plain is not None and tensor.channels % LANES == 0
        if (_FLOAT, LANES) in tensor.packed or (rows and not tensor.packed):
            return self.rewriter.packed(var, _FLOAT)
        return self.rewriter.packed(var)


def _placeholder(expr: Expr, name: str) -> TensorExpr:
    return te.placeholder(static_shape(expr), str(expr.ty.dtype), name)


def _channels(constant: Expr, tensor: _Tensor) -> Expr:
    """A constant for each channel as vectors (C / 16, 16)."""
    values = constant.value.numpy().reshape(-1).astype(np.float32)
    return relax.const(_filled(values, 0, LANES).reshape(-1, LANES), _FLOAT)


def _filled(values: Array, axis: int, multiple: int) -> Array:
    """An array with zeros at the end of an axis, so that its size is a multiple."""
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, -values.shape[axis] % multiple)
    return np.pad(values, widths)


_Handler = Callable[[_Rewriter, Any], "tuple[Node, bool] | None"]


def _conv2d(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    if not rewriter.everywhere or not plain_convolution(call) or not isinstance(call.args[0], relax.Var):
        return None
    attrs = call.attrs
    strides, padding, dilation = (
        tuple(int(item) for item in values) for values in (attrs.strides, attrs.padding, attrs.dilation)
    )
    window = Window(static_shape(call)[2:], strides, padding, dilation)
    data, weight = call.args
    channels, groups = static_shape(data)[1], int(attrs.groups)
    if groups == channels == static_shape(call)[1] > _FEW_CHANNELS:
        depthwise = relax.const(_packed_depthwise(weight.value.numpy()), _FLOAT)
        sums = partial(programs.sums_of_depthwise, window=window)
        return Product("bfloat16_depthwise_conv2d", lambda: (rewriter.packed(data), depthwise), sums), True
    if groups != 1:
        return None
    lanes = _FEW_CHANNELS if channels <= _FEW_CHANNELS and not rewriter.is_packed(data, is_image=True) else LANES
    packed = _packed_weight(weight.value.numpy(), lanes)
    instructions = dot_instructions(rewriter.target)
    if _is_small(call) and lanes == LANES:
        outputs, _, wide = packed.shape[:3]
        row = relax.const(packed.reshape(outputs, 1, 1, -1, *packed.shape[4:]), DTYPE)
        sums = partial(programs.sums_of_pixels, window=window, wide=wide, instructions=instructions)
        return Product("bfloat16_conv2d", lambda: (rewriter.packed(data), row), sums), True
    sums = partial(programs.sums_of_convolution, window=window, instructions=instructions)
    return Product(
        "bfloat16_conv2d", lambda: (rewriter.packed(data, lanes=lanes), relax.const(packed, DTYPE)), sums
    ), True


def _is_small(call: Call) -> bool:
    """Whether an image has so short rows that it is better computed as one row of pixels."""
    batch, _, height, width = static_shape(call)
    whole = static_shape(call.args[0])[1] % _COPIED_CHANNELS == 0
    return batch == 1 and height > 1 and width <= _SHORT_ROW and height * width <= _MOST_PIXELS and whole


def _packed_weight(weight: Array, lanes: int) -> Array:
    """Weights (O, I, KH, KW) as (O / 16, KH, KW, I / b, b / 2, 16, 2)."""
    filled = _filled(_filled(weight, 0, LANES), 1, lanes)
    outputs, inputs, height, width = filled.shape
    blocks = filled.reshape(outputs // LANES, LANES, inputs // lanes, lanes // PAIR, PAIR, height, width)
    return rounded(blocks.transpose(0, 5, 6, 2, 3, 1, 4))


def _packed_depthwise(weight: Array) -> Array:
    """Weights (C, 1, KH, KW) as float32 (C / 16, KH, KW, 16, 1)."""
    filled = _filled(weight[:, 0], 0, LANES)
    blocks = filled.reshape(-1, LANES, *weight.shape[2:]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks[..., None], np.float32)


def _matmul(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """A product of rows with a constant matrix: a convolution of an image of one row with a 1x1 kernel."""
    data, matrix = call.args
    rows = prod(static_shape(call)[:-1])
    if isinstance(matrix, relax.Var):
        return _matmul_of_two(rewriter, call)
    if not is_tensor_constant(matrix) or not isinstance(data, relax.Var) or len(static_shape(data)) < 2:
        return None
    weight = matrix.value.numpy()
    reads_weights = rows <= _FEW_ROWS and weight.size >= _MANY_WEIGHTS
    if weight.ndim != 2 or weight.dtype != np.float32 or not (rewriter.everywhere or reads_weights):
        return None
    if not rewriter.has_layout(data, is_image=False):
        return None
    packed = relax.const(_packed_weight(weight.T[:, :, None, None], LANES), DTYPE)
    sums = partial(
        programs.sums_of_convolution, window=Window((1, rows)), instructions=dot_instructions(rewriter.target)
    )
    return Product("bfloat16_matmul", lambda: (rewriter.packed(data), packed), sums), False


def _matmul_of_two(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """Products of as many matrices with as many others: the weights of each image are those of its own."""
    data, matrix = call.args
    one, other = map(static_shape, call.args)
    same = isinstance(data, relax.Var) and one[:-2] == other[:-2] and len(one) > 2
    dtypes = {str(item.ty.dtype) for item in call.args}
    if not (rewriter.everywhere and same and dtypes == {_FLOAT}) or any(
        size % LANES for size in (*other[-2:], one[-1])
    ):
        return None
    if not rewriter.has_layout(data, is_image=False):
        return None
    batch, rows, inner, columns = prod(one[:-2]), one[-2], one[-1], other[-1]

    def operands() -> tuple[Expr, Expr]:
        image = rewriter.emit(relax.op.reshape(rewriter.packed(data), (batch, 1, rows, inner // LANES, LANES)))
        plain = rewriter.emit(relax.op.reshape(rewriter.plain(matrix), (batch, inner, columns)))
        shape = (batch, columns // LANES, inner // PAIR, PAIR * LANES)
        pairs = rewriter.kernel(programs.pairs_program(batch, inner, columns), "bfloat16_pairs", [plain], shape)
        packed = (batch, columns // LANES, 1, 1, inner // LANES, LANES // PAIR, LANES, PAIR)
        return image, rewriter.emit(relax.op.reshape(pairs, packed))

    sums = partial(
        programs.sums_of_convolution, window=Window((1, rows)), instructions=dot_instructions(rewriter.target)
    )
    return Product("bfloat16_batch_matmul", operands, sums), False


def _elementwise(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """An operator one of whose operands is packed, and all of whose others are that too or can become it."""
    shape = static_shape(call)
    for is_image in (True, False):
        if any(rewriter.is_packed(item, is_image=is_image) and static_shape(item) == shape for item in call.args):
            operands = [_read(rewriter, item, shape, is_image) for item in call.args]
            if None in operands:
                return None
            function = FUNCTIONS[op_name(call)]
            if op_name(call) == "relax.nn.leakyrelu":
                operands.append(float(call.attrs.alpha))
            if op_name(call) == "relax.divide" and not isinstance(operands[1], float):
                return None  # in padding lanes it could be by zero
            return Elementwise(function, tuple(operands)), is_image
    return None


def _read(rewriter: _Rewriter, operand: Expr, shape: Shape, is_image: bool) -> Expr | float | None:
    """How a kernel reads an operand: as a number, a constant for each channel, or a variable; None if it cannot."""
    if isinstance(operand, relax.Var):
        size = static_shape(operand)
        fits = size == shape or (is_image and size == (*shape[:2], 1, 1))
        same_type = str(operand.ty.dtype) == _FLOAT
        return operand if fits and same_type and rewriter.has_layout(operand, is_image=is_image) else None
    if not is_tensor_constant(operand):
        return float(operand.value)
    size = static_shape(operand)
    if prod(size) == 1:
        return float(operand.value.numpy().reshape(()))
    axis = 1 if is_image else len(shape) - 1
    wide = (1,) * (len(shape) - len(size)) + size
    return operand if wide == tuple(extent if at == axis else 1 for at, extent in enumerate(shape)) else None


def _pool(rewriter: _Rewriter, call: Call, *, largest: bool) -> tuple[Node, bool] | None:
    attrs = call.attrs
    data = call.args[0]
    padding = tuple(int(item) for item in attrs.padding)
    if not rewriter.is_packed(data, is_image=True) or str(attrs.layout) != "NCHW":
        return None
    if any(int(item) != 1 for item in attrs.dilation) or (not largest and (any(padding) or attrs.ceil_mode)):
        return None
    high, wide = (int(item) for item in attrs.pool_size)
    window = Window(static_shape(call)[2:], tuple(int(item) for item in attrs.strides), padding)
    return Kernel(lambda: _pooled(rewriter, data, (high, wide), window, largest=largest)), True


def _pooled(rewriter: _Rewriter, data: Var, kernel: tuple[int, int], window: Window, *, largest: bool) -> Expr:
    image = rewriter.packed(data)
    shape = static_shape(image)
    program = programs.pool_program(shape, kernel, window, largest=largest)
    name = "bfloat16_max_pool" if largest else "bfloat16_average"
    return rewriter.kernel(program, name, [image], (shape[0], *window.size, *shape[3:]))


def _global_average(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """The mean over height and width."""
    data = call.args[0]
    shape = static_shape(data)
    if not rewriter.is_packed(data, is_image=True):
        return None
    if op_name(call) == "relax.mean":
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
        if axes != [2, 3]:
            return None
    elif static_shape(call)[2:] != (1, 1) or str(call.attrs.layout) != "NCHW":
        return None
    kernel = (shape[2], shape[3])
    is_image = len(static_shape(call)) == 4

    def make() -> Expr:
        image = _pooled(rewriter, data, kernel, Window((1, 1)), largest=False)
        return image if is_image else _as_rows(rewriter, image)

    return Kernel(make), is_image


def _as_rows(rewriter: _Rewriter, image: Expr) -> Expr:
    """An image of one pixel for each batch as rows."""
    batch, _, _, chunks, lanes = static_shape(image)
    return rewriter.emit(relax.op.reshape(image, (1, 1, batch, chunks, lanes)))


def _reshape(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """A reshape that leaves the channels where they are."""
    data, shape = call.args[0], static_shape(call)
    if data not in rewriter._nodes:
        return None
    tensor = rewriter.tensor(data)
    if tensor.is_image:
        pixels = tensor.shape[2:] == (1, 1) and shape == tensor.shape[:2]
        return (Kernel(lambda: _as_rows(rewriter, rewriter.packed(data))), False) if pixels else None
    same = len(shape) > 1 and shape[-1] == tensor.channels
    return (Kernel(lambda: rewriter.packed(data)), False) if same else None


def _concat(rewriter: _Rewriter, call: Call) -> tuple[Node, bool] | None:
    """Channels put together."""
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    axis = int(call.attrs.axis or 0) % len(static_shape(call))
    images = parts and all(rewriter.is_packed(item, is_image=True) for item in parts)
    if not images or axis != 1 or any(static_shape(item)[1] % LANES for item in parts):
        return None

    def make() -> Expr:
        operands = [rewriter.packed(item) for item in parts]
        shapes = [static_shape(item) for item in operands]
        result = (*shapes[0][:3], sum(shape[3] for shape in shapes), LANES)
        return rewriter.kernel(programs.concat_program(shapes), "bfloat16_concat", operands, result)

    return Kernel(make), True


_HANDLERS: Mapping[str, _Handler] = {
    "relax.nn.conv2d": _conv2d,
    "relax.matmul": _matmul,
    **dict.fromkeys(FUNCTIONS, _elementwise),
    "relax.nn.max_pool2d": partial(_pool, largest=True),
    "relax.nn.avg_pool2d": partial(_pool, largest=False),
    "relax.nn.adaptive_avg_pool2d": _global_average,
    "relax.mean": _global_average,
    "relax.reshape": _reshape,
    "relax.squeeze": _reshape,
    "relax.concat": _concat,
}
