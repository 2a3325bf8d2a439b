"""Compute convolutions and products of a graph in bfloat16, and what lies between them on what they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.bfloat16 import kernels
from autotune.tvm_backend.bfloat16.elements import DTYPE, rounded
from autotune.tvm_backend.bfloat16.expression import FUNCTIONS, Elementwise, Kernel, Node, Product, Same
from autotune.tvm_backend.bfloat16.instructions import dot_instructions
from autotune.tvm_backend.bfloat16.kernels import LANES, PAIR
from autotune.tvm_backend.bfloat16.packed_graph import FLOAT, PackedGraph, Shape
from autotune.tvm_backend.integer.byte_kernels import enlarge_kernel, slice_kernel
from autotune.tvm_backend.integer.packing import by_group, filled
from autotune.tvm_backend.passes.convolution import Window, channels_of_part, repeats
from autotune.tvm_backend.passes.permutations import axes_of
from autotune.tvm_backend.passes.rewrite import (
    is_tensor_constant,
    op_name,
    plain_convolution,
    rewrite_and_clean,
    static_shape,
)
from autotune.tvm_backend.types import Call, Expr, IRModule, Target, Var

Array = npt.NDArray[Any]
_FEW_CHANNELS = 4
_FEW_ROWS = 8  # of a product that is bound by reading its weights
_MANY_WEIGHTS = 2**20
_SHORT_ROW = 8
_MOST_PIXELS = 64  # of an image that is computed as one row: a tile has no more
_TO_IMAGE = (0, 3, 1, 2)
_TO_ROWS = (0, 2, 3, 1)
_COPIED_CHANNELS = 64  # pixels are copied by so many at once


def bfloat16_kernels(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that convolutions and products with constants compute in bfloat16, with sums in float32.

    On a CPU without instructions for it, only products that are bound by reading their weights do.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
        target: The target, whose instructions the kernels use.
    """
    return rewrite_and_clean(mod, lambda module: _Operators(module, target))


class _Operators(PackedGraph):
    def operator(self, value: Expr) -> tuple[Node, bool] | None:
        if isinstance(value, relax.TupleGetItem):
            return _part(self, value)
        handler = _HANDLERS.get(op_name(value))
        return handler(self, value) if handler else None


# From the graph and an operator to what `PackedGraph.operator` returns.
_Handler = Callable[[PackedGraph, Call], "tuple[Node, bool] | None"]


def _conv2d(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    if not graph.everywhere or not plain_convolution(call) or not isinstance(call.args[0], relax.Var):
        return None
    window = Window.of(call)
    data, weight = call.args
    if not graph.has_layout(data, is_image=True):
        return None
    channels = static_shape(data)[1]
    groups = int(call.attrs.groups)
    if groups == channels == static_shape(call)[1] > _FEW_CHANNELS:
        depthwise = relax.const(_packed_depthwise(weight.value.numpy()), FLOAT)
        sums = partial(kernels.sums_of_depthwise, window=window)
        return Product("bfloat16_depthwise_conv2d", lambda: (graph.packed(data), depthwise), sums), True
    if groups > 1:
        return _in_groups(graph, call), True
    line = _Line.of(call) if not graph.is_packed(data, is_image=True) else None
    if line is not None:
        return line.product(graph, data, weight.value.numpy()), True
    lanes = _FEW_CHANNELS if channels <= _FEW_CHANNELS and not graph.is_packed(data, is_image=True) else LANES
    packed = _packed_weight(weight.value.numpy(), lanes)
    instructions = dot_instructions(graph.target)
    if instructions.tiles and _is_small(call) and lanes == LANES:
        outputs, _, wide = packed.shape[:3]
        row = relax.const(packed.reshape(outputs, 1, 1, -1, *packed.shape[4:]), DTYPE)
        sums = partial(kernels.sums_of_pixels, window=window, wide=wide, instructions=instructions)
        return Product("bfloat16_conv2d", lambda: (graph.packed(data), row), sums), True
    sums = partial(kernels.sums_of_convolution, window=window, instructions=instructions)
    return Product("bfloat16_conv2d", lambda: (graph.packed(data, lanes=lanes), relax.const(packed, DTYPE)), sums), True


def _in_groups(graph: PackedGraph, call: Call) -> Product:
    """A convolution of groups: each chunk of the result depends on few chunks of the image."""
    data, weight = call.args
    outer = static_shape(call)[1] // int(call.attrs.groups)
    chunks = -(-static_shape(data)[1] // LANES)
    values, grouping = by_group(filled(weight.value.numpy(), 0, LANES), outer, LANES, chunks)
    packed = relax.const(_packed_weight(values, LANES), DTYPE)
    instructions = dot_instructions(graph.target)
    sums = partial(kernels.sums_of_convolution, window=Window.of(call), instructions=instructions, grouping=grouping)
    return Product("bfloat16_conv2d", lambda: (graph.packed(data), packed), sums)


@dataclass(frozen=True)
class _Line:
    """A convolution of few channels as one of rows of pairs, with fewer zeros than one of pixels filled up with lanes.

    Attributes:
        shape: That of the image, (N, C, H, W).
        window: The geometry over its pixels.
        pairs: Of elements, which a row of the window has.
    """

    shape: Shape
    window: Window
    pairs: int

    @classmethod
    def of(cls, call: Call) -> _Line | None:
        """Return that of a convolution; None if a window may start within a pair, or has no fewer pairs so."""
        shape = static_shape(call.args[0])
        window = Window.of(call)
        channels = shape[1]
        wide = static_shape(call.args[1])[3]
        pairs = -(-wide * channels // PAIR)
        even = window.strides[1] * channels % PAIR == 0 and window.dilation[1] == 1
        fewer = channels <= _FEW_CHANNELS and pairs < wide * _FEW_CHANNELS // PAIR
        return cls(shape, window, pairs) if even and fewer else None

    def product(self, graph: PackedGraph, data: Var, weight: Array) -> Product:
        step = self.window.strides[1] * self.shape[1] // PAIR
        window = replace(self.window, strides=(self.window.strides[0], step), padding=(0, 0, 0, 0))
        instructions = dot_instructions(graph.target)
        sums = partial(kernels.sums_of_convolution, window=window, instructions=instructions)
        packed = relax.const(_packed_weight(self._rows_of(weight), PAIR), DTYPE)
        return Product("bfloat16_conv2d", lambda: (self._lines(graph, data, step), packed), sums)

    def _rows_of(self, weight: Array) -> Array:
        """Weights (O, C, KH, KW) as (O, 2, KH, pairs)."""
        outputs, _, high, _ = weight.shape
        rows = weight.transpose(0, 2, 3, 1).reshape(outputs, high, -1)
        return filled(rows, 2, PAIR).reshape(outputs, high, self.pairs, PAIR).transpose(0, 3, 1, 2)

    def _lines(self, graph: PackedGraph, data: Var, step: int) -> Expr:
        least = (self.window.size[1] - 1) * step + self.pairs
        shape = kernels.lines_of(self.shape, self.window, least)
        program = kernels.line_program(self.shape, self.window, shape)
        lines = graph.kernel(program, "bfloat16_lines", [graph.plain(data)], shape, DTYPE)
        return graph.emit(relax.op.reshape(lines, (*shape[:2], shape[2] * shape[3] // PAIR, 1, PAIR)))


def _is_small(call: Call) -> bool:
    """Whether an image has so short rows that tiles compute it better as one row of pixels."""
    batch, _, height, width = static_shape(call)
    whole = static_shape(call.args[0])[1] % _COPIED_CHANNELS == 0
    return batch == 1 and height > 1 and width <= _SHORT_ROW and height * width <= _MOST_PIXELS and whole


def _packed_weight(weight: Array, lanes: int) -> Array:
    """Weights (O, I, KH, KW) as (O / 16, KH, KW, I / b, b / 2, 16, 2)."""
    whole = filled(filled(weight, 0, LANES), 1, lanes)
    outputs, inputs, height, width = whole.shape
    blocks = whole.reshape(outputs // LANES, LANES, inputs // lanes, lanes // PAIR, PAIR, height, width)
    return rounded(blocks.transpose(0, 5, 6, 2, 3, 1, 4))


def _packed_depthwise(weight: Array) -> Array:
    """Weights (C, 1, KH, KW) as float32 (C / 16, KH, KW, 16, 1)."""
    whole = filled(weight[:, 0], 0, LANES)
    blocks = whole.reshape(-1, LANES, *weight.shape[2:]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks[..., None], np.float32)


def _matmul(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """A product of rows with a constant matrix: a convolution of an image of one row with a 1x1 kernel."""
    data, matrix = call.args
    rows = prod(static_shape(call)[:-1])
    if isinstance(matrix, relax.Var):
        return _matmul_of_two(graph, call)
    if not is_tensor_constant(matrix) or not isinstance(data, relax.Var) or len(static_shape(data)) < 2:
        return None
    weight = matrix.value.numpy()
    reads_weights = rows <= _FEW_ROWS and weight.size >= _MANY_WEIGHTS
    if weight.ndim != 2 or weight.dtype != np.float32 or not (graph.everywhere or reads_weights):
        return None
    if not graph.has_layout(data, is_image=False):
        return None
    packed = relax.const(_packed_weight(weight.T[:, :, None, None], LANES), DTYPE)
    sums = partial(kernels.sums_of_convolution, window=Window((1, rows)), instructions=dot_instructions(graph.target))
    return Product("bfloat16_matmul", lambda: (graph.packed(data), packed), sums), False


def _matmul_of_two(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """Products of as many matrices with as many others: the weights of each image are those of its own."""
    data, matrix = call.args
    one, other = map(static_shape, call.args)
    same = isinstance(data, relax.Var) and one[:-2] == other[:-2] and len(one) > 2
    dtypes = {str(item.ty.dtype) for item in call.args}
    if not (graph.everywhere and same and dtypes == {FLOAT}) or any(size % LANES for size in (*other[-2:], one[-1])):
        return None
    if not graph.has_layout(data, is_image=False):
        return None
    batch = prod(one[:-2])
    rows = one[-2]
    inner = one[-1]
    columns = other[-1]

    def operands() -> tuple[Expr, Expr]:
        image = graph.emit(relax.op.reshape(graph.packed(data), (batch, 1, rows, inner // LANES, LANES)))
        plain = graph.emit(relax.op.reshape(graph.plain(matrix), (batch, inner, columns)))
        shape = (batch, columns // LANES, inner // PAIR, PAIR * LANES)
        pairs = graph.kernel(kernels.pairs_program(batch, inner, columns), "bfloat16_pairs", [plain], shape, DTYPE)
        packed = (batch, columns // LANES, 1, 1, inner // LANES, LANES // PAIR, LANES, PAIR)
        return image, graph.emit(relax.op.reshape(pairs, packed))

    sums = partial(kernels.sums_of_convolution, window=Window((1, rows)), instructions=dot_instructions(graph.target))
    return Product("bfloat16_batch_matmul", operands, sums), False


def _elementwise(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """An operator one of whose operands is packed, and all of whose others are that too or can become it."""
    shape = static_shape(call)
    for is_image in (True, False):
        if any(graph.is_packed(item, is_image=is_image) and static_shape(item) == shape for item in call.args):
            operands = [_read(graph, item, shape, is_image) for item in call.args]
            if None in operands:
                return None
            function = FUNCTIONS[op_name(call)]
            if op_name(call) == "relax.nn.leakyrelu":
                operands.append(float(call.attrs.alpha))
            if op_name(call) == "relax.divide" and not isinstance(operands[1], float):
                return None  # in padding lanes it could be by zero
            return Elementwise(function, tuple(operands)), is_image
    return None


def _read(graph: PackedGraph, operand: Expr, shape: Shape, is_image: bool) -> Expr | float | None:
    """How a kernel reads an operand: as a number, a constant for each channel, or a variable; None if it cannot."""
    if isinstance(operand, relax.Var):
        size = static_shape(operand)
        fits = size == shape or (is_image and size == (*shape[:2], 1, 1))
        same_type = str(operand.ty.dtype) == FLOAT
        return operand if fits and same_type and graph.has_layout(operand, is_image=is_image) else None
    if not is_tensor_constant(operand):
        return float(operand.value)
    size = static_shape(operand)
    if prod(size) == 1:
        return float(operand.value.numpy().reshape(()))
    axis = 1 if is_image else len(shape) - 1
    wide = (1,) * (len(shape) - len(size)) + size
    return (
        operand if wide == tuple(extent if dimension == axis else 1 for dimension, extent in enumerate(shape)) else None
    )


def _pool(graph: PackedGraph, call: Call, *, largest: bool) -> tuple[Node, bool] | None:
    attrs = call.attrs
    data = call.args[0]
    window = Window.of(call)
    if not graph.is_packed(data, is_image=True) or str(attrs.layout) != "NCHW":
        return None
    if set(window.dilation) != {1} or (not largest and (any(window.padding) or attrs.ceil_mode)):
        return None
    high, wide = (int(item) for item in attrs.pool_size)
    return Kernel(lambda: _pooled(graph, data, (high, wide), window, largest=largest)), True


def _pooled(graph: PackedGraph, data: Var, kernel: tuple[int, int], window: Window, *, largest: bool) -> Expr:
    image = graph.packed(data)
    shape = static_shape(image)
    program = kernels.pool_program(shape, kernel, window, largest=largest)
    name = "bfloat16_max_pool" if largest else "bfloat16_average"
    return graph.kernel(program, name, [image], (shape[0], *window.size, *shape[3:]), DTYPE)


def _global_average(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """The mean over height and width."""
    data = call.args[0]
    shape = static_shape(data)
    if not graph.is_packed(data, is_image=True):
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
        image = _pooled(graph, data, kernel, Window((1, 1)), largest=False)
        return image if is_image else _as_rows(graph, image)

    return Kernel(make), is_image


def _as_rows(graph: PackedGraph, image: Expr) -> Expr:
    """An image of one pixel for each batch as rows."""
    batch, _, _, chunks, lanes = static_shape(image)
    return graph.emit(relax.op.reshape(image, (1, 1, batch, chunks, lanes)))


def _reshape(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """A reshape that leaves the channels where they are."""
    data = call.args[0]
    shape = static_shape(call)
    if not graph.has_node(data):
        return None
    tensor = graph.tensor(data)
    if tensor.is_image:
        pixels = tensor.shape[2:] == (1, 1) and shape == tensor.shape[:2]
        return (Kernel(lambda: _as_rows(graph, graph.packed(data))), False) if pixels else None
    same = len(shape) > 1 and shape[-1] == tensor.channels
    return (Kernel(lambda: graph.packed(data)), False) if same else None


def _permute(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """Channels that go from the last axis to the second, or back. An image and its pixels as rows are packed alike."""
    data = call.args[0]
    axes = axes_of(call)
    to_image = axes == _TO_IMAGE
    if not (graph.everywhere and isinstance(data, relax.Var) and (to_image or axes == _TO_ROWS)):
        return None
    whole = static_shape(call)[1 if to_image else 3] % LANES == 0
    is_packed = to_image or graph.has_node(data)
    if not (whole and is_packed and graph.has_layout(data, is_image=not to_image)):
        return None
    return Same(data), to_image


def _concat(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """Channels put together."""
    joined = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    axis = int(call.attrs.axis or 0) % len(static_shape(call))
    images = joined and all(graph.is_packed(item, is_image=True) for item in joined)
    if not images or axis != 1 or any(static_shape(item)[1] % LANES for item in joined):
        return None

    def make() -> Expr:
        operands = [graph.packed(item) for item in joined]
        shapes = [static_shape(item) for item in operands]
        result = (*shapes[0][:3], sum(shape[3] for shape in shapes), LANES)
        return graph.kernel(kernels.concat_program(shapes), "bfloat16_concat", operands, result, DTYPE)

    return Kernel(make), True


def _part(graph: PackedGraph, part: Expr) -> tuple[Node, bool] | None:
    """A part of channels that were split."""
    split: Expr = graph.split(part.tuple_value)
    if split is None or int(split.attrs.axis) % len(static_shape(split.args[0])) != 1:
        return None
    return _some_channels(graph, split.args[0], *channels_of_part(part))


def _slice(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """A slice of channels."""
    data, axes, begins, _, *strides = call.args
    if len(axes) != 1 or int(axes[0].value) % len(static_shape(data)) != 1:
        return None
    if any(int(item.value) != 1 for numbers in strides for item in numbers):
        return None
    first = int(begins[0].value)
    channels = static_shape(data)[1]
    return _some_channels(graph, data, max(first + channels, 0) if first < 0 else first, static_shape(call)[1])


def _some_channels(graph: PackedGraph, data: Expr, first: int, count: int) -> tuple[Node, bool] | None:
    """So many channels of an image, from one on."""
    if not graph.is_packed(data, is_image=True) or first % LANES or count % LANES:
        return None

    def make() -> Expr:
        image = graph.packed(data)
        shape = static_shape(image)
        program = slice_kernel(shape, first // LANES, count // LANES, DTYPE)
        return graph.kernel(program, "bfloat16_slice", [image], (*shape[:3], count // LANES, LANES), DTYPE)

    return Kernel(make), True


def _resize(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """An image whose pixels are repeated a whole number of times."""
    data = call.args[0]
    factors = repeats(call)
    if not graph.is_packed(data, is_image=True) or factors is None:
        return None

    def make() -> Expr:
        image = graph.packed(data)
        shape = static_shape(image)
        result = (shape[0], shape[1] * factors[0], shape[2] * factors[1], *shape[3:])
        program = enlarge_kernel(shape, factors, DTYPE)
        return graph.kernel(program, "bfloat16_enlarge", [image], result, DTYPE)

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
    "relax.permute_dims": _permute,
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
    "relax.image.resize2d": _resize,
}
