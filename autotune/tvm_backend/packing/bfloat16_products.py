"""Convolutions and products in bfloat16: how they are computed, and how their weights are packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, plain_convolution, static_shape, values_of
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, rounded
from autotune.tvm_backend.isa.available import dot_instructions
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import bfloat16_images as kernels
from autotune.tvm_backend.operators.bfloat16_images import PAIR
from autotune.tvm_backend.operators.chunked_product import Grouping
from autotune.tvm_backend.operators.convolution import Window
from autotune.tvm_backend.packing.bfloat16_graph import FLOAT, Bfloat16Graph
from autotune.tvm_backend.packing.chunked_weights import by_group, filled, in_words, taps_in_words
from autotune.tvm_backend.packing.encodings import Forms, Result, Shape
from autotune.tvm_backend.packing.inlining import ProductNode
from autotune.tvm_backend.types import Call, Expr, TensorExpr, Var

Array = npt.NDArray[Any]
_FEW_CHANNELS = 4
_FEW_ROWS = 8  # of a product that is bound by reading its weights
_MANY_WEIGHTS = 2**20
_SHORT_ROW = 8
_MAX_PIXELS = 64  # of an image that is computed as one row: a tile has no more
_COPIED_CHANNELS = 64  # pixels are copied by so many at once


def is_computed(call: Call) -> bool:
    """Return whether a convolution or a product of rows is one that has kernels in bfloat16."""
    if op_name(call) == "relax.matmul":
        return is_tensor_constant(call.args[1]) and len(static_shape(call.args[1])) == 2
    if not plain_convolution(call):
        return False
    groups = int(call.attrs.groups)
    channels = static_shape(call.args[0])[1]
    return groups == 1 or groups < channels or groups == static_shape(call)[1] > _FEW_CHANNELS


def conv2d(graph: Bfloat16Graph, call: Call, result: Result) -> Forms | None:
    """Compute a convolution in bfloat16."""
    node = _convolution(graph, call)
    return None if node is None else graph.compute(result, node, is_image=True)


def matmul(graph: Bfloat16Graph, call: Call, result: Result) -> Forms | None:
    """Compute a product of rows with a matrix, or of as many as there are, in bfloat16."""
    node = _product(graph, call)
    return None if node is None else graph.compute(result, node, is_image=False)


def _convolution(graph: Bfloat16Graph, call: Call) -> ProductNode | None:
    """A convolution of images with constant weights, by channels or in groups, too."""
    if not graph.everywhere or not is_computed(call) or not isinstance(call.args[0], relax.Var):
        return None
    window = Window.of(call)
    data, weight = call.args
    if not graph.has_layout(data, is_image=True):
        return None
    channels = static_shape(data)[1]
    groups = int(call.attrs.groups)
    if groups == channels > 1:
        taps = np.ascontiguousarray(taps_in_words(values_of(weight), 1), np.float32)
        depthwise = relax.const(taps, FLOAT)
        sums = partial(kernels.sums_of_depthwise, window=window)
        return ProductNode("bfloat16_depthwise_conv2d", lambda: (graph.chunks(data), depthwise), sums)
    if groups > 1:
        return _in_groups(graph, call)
    line = _Line.of(call) if not graph.is_packed(data, is_image=True) else None
    if line is not None:
        return line.product(graph, data, values_of(weight))
    lanes = _FEW_CHANNELS if channels <= _FEW_CHANNELS and not graph.is_packed(data, is_image=True) else LANES
    packed = _packed_weight(values_of(weight), lanes)
    instructions = dot_instructions(graph.target, "bfloat16")
    if instructions.tiles and _is_small(call) and lanes == LANES:
        outputs, _, wide = packed.shape[:3]
        row = relax.const(packed.reshape(outputs, 1, 1, -1, *packed.shape[4:]), DTYPE)
        sums = partial(kernels.sums_of_pixels, window=window, wide=wide, instructions=instructions)
        return ProductNode("bfloat16_conv2d", lambda: (graph.chunks(data), row), sums)

    def operands() -> tuple[Expr, Expr]:
        return graph.chunks(data, lanes=lanes), relax.const(packed, DTYPE)

    return ProductNode("bfloat16_conv2d", operands, _sums(graph, window))


def _sums(graph: Bfloat16Graph, window: Window, grouping: Grouping | None = None) -> Callable[..., TensorExpr]:
    """What makes the sums of a product from its operands, by the instructions of the target."""
    instructions = dot_instructions(graph.target, "bfloat16")
    return partial(kernels.sums_of_convolution, window=window, instructions=instructions, grouping=grouping)


def _in_groups(graph: Bfloat16Graph, call: Call) -> ProductNode:
    """A convolution of groups: each chunk of the result depends on few chunks of the image.

    The weights of other groups in these chunks are zeros, so that an infinity reaches those groups as NaN.
    """
    data, weight = call.args
    outer = static_shape(call)[1] // int(call.attrs.groups)
    chunks = -(-static_shape(data)[1] // LANES)
    values, grouping = by_group(values_of(weight), outer, LANES, chunks)
    packed = relax.const(_packed_weight(values, LANES), DTYPE)
    sums = _sums(graph, Window.of(call), grouping)
    return ProductNode("bfloat16_conv2d", lambda: (graph.chunks(data), packed), sums)


@dataclass(frozen=True)
class _Line:
    """A convolution of few channels as one of rows of pairs, with fewer zeros than one of pixels filled up to lanes."""

    shape: Shape  # that of the image, (N, C, H, W)
    window: Window  # the geometry over its pixels
    pairs: int  # of elements, which a row of the window has

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

    def product(self, graph: Bfloat16Graph, data: Var, weight: Array) -> ProductNode:
        step = self.window.strides[1] * self.shape[1] // PAIR
        window = replace(self.window, strides=(self.window.strides[0], step), padding=(0, 0, 0, 0))
        packed = relax.const(_packed_weight(self._rows_of(weight), PAIR), DTYPE)
        return ProductNode("bfloat16_conv2d", lambda: (self._lines(graph, data, step), packed), _sums(graph, window))

    def _rows_of(self, weight: Array) -> Array:
        """Weights (O, C, KH, KW) as (O, 2, KH, pairs)."""
        outputs, _, high, _ = weight.shape
        rows = weight.transpose(0, 2, 3, 1).reshape(outputs, high, -1)
        return filled(rows, 2, PAIR).reshape(outputs, high, self.pairs, PAIR).transpose(0, 3, 1, 2)

    def _lines(self, graph: Bfloat16Graph, data: Var, step: int) -> Expr:
        least = (self.window.size[1] - 1) * step + self.pairs
        shape = kernels.lines_of(self.shape, self.window, least)
        program = kernels.line_program(self.shape, self.window, shape)
        lines = graph.kernel(program, "bfloat16_lines", [graph.plain(data)], shape, DTYPE)
        return graph.emit(relax.op.reshape(lines, (*shape[:2], shape[2] * shape[3] // PAIR, 1, PAIR)))


def _is_small(call: Call) -> bool:
    """Whether an image has so short rows that tiles compute it better as one row of pixels."""
    batch, _, height, width = static_shape(call)
    whole = static_shape(call.args[0])[1] % _COPIED_CHANNELS == 0
    return batch == 1 and height > 1 and width <= _SHORT_ROW and height * width <= _MAX_PIXELS and whole


def _packed_weight(weight: Array, lanes: int) -> Array:
    """Weights (O, I, KH, KW) as elements in words."""
    return rounded(in_words(weight, lanes, PAIR))


def _product(graph: Bfloat16Graph, call: Call) -> ProductNode | None:
    """A product of rows with a constant matrix: a convolution of an image of one row with a 1x1 kernel.

    Products of as many matrices with as many others are like it.
    """
    data, matrix = call.args
    rows = prod(static_shape(call)[:-1])
    if isinstance(matrix, relax.Var):
        return _product_of_two(graph, call)
    if not is_tensor_constant(matrix) or not isinstance(data, relax.Var) or len(static_shape(data)) < 2:
        return None
    weight = values_of(matrix)
    reads_weights = rows <= _FEW_ROWS and weight.size >= _MANY_WEIGHTS
    if weight.ndim != 2 or weight.dtype != np.float32 or not (graph.everywhere or reads_weights):
        return None
    if not graph.has_layout(data, is_image=False):
        return None
    packed = relax.const(_packed_weight(weight.T[:, :, None, None], LANES), DTYPE)
    sums = _sums(graph, Window((1, rows)))
    return ProductNode("bfloat16_matmul", lambda: (graph.chunks(data), packed), sums)


def _product_of_two(graph: Bfloat16Graph, call: Call) -> ProductNode | None:
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
        image = graph.emit(relax.op.reshape(graph.chunks(data), (batch, 1, rows, inner // LANES, LANES)))
        plain = graph.emit(relax.op.reshape(graph.plain(matrix), (batch, inner, columns)))
        shape = (batch, columns // LANES, inner // PAIR, PAIR * LANES)
        pairs = graph.kernel(kernels.pairs_program(batch, inner, columns), kernels.PAIRS, [plain], shape, DTYPE)
        packed = (batch, columns // LANES, 1, 1, inner // LANES, LANES // PAIR, LANES, PAIR)
        return image, graph.emit(relax.op.reshape(pairs, packed))

    sums = _sums(graph, Window((1, rows)))
    return ProductNode("bfloat16_batch_matmul", operands, sums)
