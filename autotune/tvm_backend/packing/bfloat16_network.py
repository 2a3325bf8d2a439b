"""Compute convolutions and products of a graph in bfloat16, and what lies between them on what they write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import ClassVar

from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.permutations import TO_FIRST, TO_LAST, axes_of
from autotune.tvm_backend.graph.rewrite import rewrite_and_clean
from autotune.tvm_backend.graph.row_operators import normalised_rows
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float, to_float
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import bfloat16_images as kernels
from autotune.tvm_backend.operators.element_functions import FUNCTIONS
from autotune.tvm_backend.operators.element_types import BFLOAT16
from autotune.tvm_backend.operators.rows import lanes_of, layer_norm
from autotune.tvm_backend.packing.bfloat16_graph import FLOAT, Bfloat16Graph
from autotune.tvm_backend.packing.bfloat16_products import conv2d, is_computed, matmul
from autotune.tvm_backend.packing.encodings import Forms, Result, Shape
from autotune.tvm_backend.packing.image_operators import Chunks, ImageOperator, Pool
from autotune.tvm_backend.packing.inlining import Elementwise, KernelNode, Same
from autotune.tvm_backend.packing.packed_graph import OPERATORS, Handler
from autotune.tvm_backend.types import Call, Expr, IRModule, Target, Var


def bfloat16_kernels(mod: IRModule, target: Target) -> IRModule:
    """Rewrite `main` so that convolutions and products with constants compute in bfloat16, with sums in float32.

    On a CPU without instructions for it, only products that are bound by reading their weights do.

    Args:
        mod: A module before LegalizeOps, with its constants and batch normalisations folded.
        target: The target, whose instructions the kernels use.
    """
    return rewrite_and_clean(mod, lambda module: _Chunks(module, target))


def _read(graph: Bfloat16Graph, operand: Expr, shape: Shape, is_image: bool) -> Expr | float | None:
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
        return float(values_of(operand).reshape(()))
    axis = 1 if is_image else len(shape) - 1
    wide = (1,) * (len(shape) - len(size)) + size
    return (
        operand if wide == tuple(extent if dimension == axis else 1 for dimension, extent in enumerate(shape)) else None
    )


def _as_rows(graph: Bfloat16Graph, image: Expr) -> Expr:
    """An image of one pixel for each batch as rows."""
    batch, _, _, chunks, lanes = static_shape(image)
    return graph.emit(relax.op.reshape(image, (1, 1, batch, chunks, lanes)))


def _reshape(graph: Bfloat16Graph, call: Call, result: Result) -> Forms | None:
    """A reshape that leaves the channels where they are."""
    data = call.args[0]
    shape = static_shape(call)
    if not graph.has_node(data):
        return None
    before = static_shape(data)
    if graph.layout(data) == "image":
        moved = before[2:] == (1, 1) and shape == before[:2]
        node = KernelNode(lambda: _as_rows(graph, graph.chunks(data)))
    else:
        moved = len(shape) > 1 and shape[-1] == before[-1]
        node = KernelNode(lambda: graph.chunks(data))
    return graph.compute(result, node, is_image=False) if moved else None


def _layer_norm(graph: Bfloat16Graph, call: Call, result: Result) -> Forms | None:
    """A layer normalisation that products alone read: it is written as they read it."""
    normalised = normalised_rows(call)
    shape = static_shape(call)
    if normalised is None or not graph.everywhere or len(shape) < 2 or shape[-1] % LANES:
        return None
    data, scale, offset, epsilon = normalised
    vectors = all(is_tensor_constant(item) and static_shape(item) == shape[-1:] for item in (scale, offset))
    if not (vectors and isinstance(data, relax.Var) and _feeds_products(graph, result.var, is_image=False)):
        return None
    if not graph.has_layout(data, is_image=False):
        return None
    rows = (prod(shape[:-1]), shape[-1])

    def make() -> Expr:
        image = graph.chunks(data, DTYPE if graph.has_node(data) else FLOAT)
        dtype = str(image.ty.dtype)
        lanes = lanes_of(rows[1])
        program = layer_norm(rows, lanes, epsilon, dtype=dtype, read=to_float, write=from_float)
        operands = [graph.emit(relax.op.reshape(image, rows)), scale, offset]
        result = graph.kernel(program, "bfloat16_layer_norm", operands, rows, DTYPE)
        return graph.emit(relax.op.reshape(result, (1, 1, rows[0], rows[1] // LANES, LANES)))

    return graph.compute(result, KernelNode(make), is_image=False)


def _feeds_products(graph: Bfloat16Graph, var: Var, *, is_image: bool) -> bool:
    """Whether only products read a variable, as an image or as rows, also where they read it in another shape."""
    readers = graph.readers(var)
    return bool(readers) and all(_is_for_product(graph, var, *reader, is_image=is_image) for reader in readers)


def _is_for_product(graph: Bfloat16Graph, var: Var, reader: Var, value: Expr, *, is_image: bool) -> bool:
    name = op_name(value)
    if name == ("relax.nn.conv2d" if is_image else "relax.matmul"):
        return bool(value.args[0].same_as(var)) and is_computed(value)
    to_image = name == "relax.permute_dims" and axes_of(value) == TO_FIRST and not is_image
    same = name == "relax.reshape" and static_shape(value)[-1:] == static_shape(var)[-1:] and not is_image
    return (to_image or same) and _feeds_products(graph, reader, is_image=to_image)


def _permute(graph: Bfloat16Graph, call: Call, result: Result) -> Forms | None:
    """Channels that go from the last axis to the second, or back. An image and its pixels as rows are packed alike."""
    data = call.args[0]
    axes = axes_of(call)
    to_image = axes == TO_FIRST
    if not (graph.everywhere and isinstance(data, relax.Var) and (to_image or axes == TO_LAST)):
        return None
    whole = static_shape(call)[1 if to_image else 3] % LANES == 0
    is_packed = graph.has_node(data) or (to_image and _feeds_products(graph, result.var, is_image=True))
    if not (whole and is_packed and graph.has_layout(data, is_image=not to_image)):
        return None
    return graph.compute(result, Same(data), is_image=to_image)


class _Chunks(Bfloat16Graph):
    handlers: ClassVar[Mapping[str, Handler]] = {
        **OPERATORS,
        "relax.nn.conv2d": conv2d,
        "relax.matmul": matmul,
        "relax.reshape": _reshape,
        "relax.squeeze": _reshape,
        "relax.nn.layer_norm": _layer_norm,
        "relax.permute_dims": _permute,
    }

    def elementwise(self, call: Call, result: Result) -> Forms | None:
        """An operator one of whose operands is packed, and all of whose others are that too or can become it."""
        expression = FUNCTIONS[op_name(call)].expression
        if expression is None:
            return None
        for is_image in (True, False):
            if any(self.is_packed(x, is_image=is_image) and static_shape(x) == result.shape for x in call.args):
                operands = [_read(self, item, result.shape, is_image) for item in call.args]
                if None in operands:
                    return None
                if op_name(call) == "relax.nn.leakyrelu":
                    operands.append(float(call.attrs.alpha))
                if op_name(call) == "relax.divide" and not isinstance(operands[1], float):
                    return None  # in padding lanes it could be by zero
                return self.compute(result, Elementwise(expression, tuple(operands)), is_image=is_image)
        return None

    def moved(self, operator: ImageOperator, result: Result) -> Forms | None:
        packed = all(self.is_packed(item, is_image=True) for item in operator.images)
        if not (packed and operator.has_kernel and operator.fits(LANES)):
            return None
        is_image = len(result.shape) == 4

        def make() -> Expr:
            chunks = Chunks(self, BFLOAT16, [self.chunks(item) for item in operator.images])
            if isinstance(operator, Pool) and not operator.largest:
                chunks = replace(
                    chunks, program=kernels.average_program(chunks.shape, operator.kernel, operator.window)
                )
            made = operator.in_chunks(chunks)
            return made if is_image else _as_rows(self, made)

        return self.compute(result, KernelNode(make), is_image=is_image)
