"""Compute convolutions and products of a graph in bfloat16, and what lies between them on what they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.graph.permutations import TO_FIRST, TO_LAST, axes_of
from autotune.tvm_backend.graph.rewrite import rewrite_and_clean
from autotune.tvm_backend.graph.row_operators import normalised_rows
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE, from_float, to_float
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import bfloat16_images as kernels
from autotune.tvm_backend.operators.element_types import BFLOAT16
from autotune.tvm_backend.operators.rows import lanes_of, layer_norm
from autotune.tvm_backend.packing.bfloat16_graph import FLOAT, PackedGraph, Shape
from autotune.tvm_backend.packing.bfloat16_products import conv2d, is_computed, matmul
from autotune.tvm_backend.packing.image_operators import POOLS, Enlargement, Join, Part, Pool
from autotune.tvm_backend.packing.inlining import FUNCTIONS, Elementwise, KernelNode, Node, Same
from autotune.tvm_backend.types import Call, Expr, IRModule, Target, Var


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
            return _some_channels(self, Part.of_split(value, self.split(value.tuple_value)))
        handler = _HANDLERS.get(op_name(value))
        return handler(self, value) if handler else None


# From the graph and an operator to what `PackedGraph.operator` returns.
_Handler = Callable[[PackedGraph, Call], "tuple[Node, bool] | None"]


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


def _pool(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """A maximum, or a mean over windows without padding, or over the whole image."""
    pool = Pool.of(call) if graph.is_packed(call.args[0], is_image=True) else None
    if pool is None:
        return None
    is_image = len(static_shape(call)) == 4

    def make() -> Expr:
        image = graph.packed(pool.image)
        program = None if pool.largest else kernels.average_program(static_shape(image), pool.kernel, pool.window)
        made = pool.call(graph, BFLOAT16, image, program)
        return made if is_image else _as_rows(graph, made)

    return KernelNode(make), is_image


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
        return (KernelNode(lambda: _as_rows(graph, graph.packed(data))), False) if pixels else None
    same = len(shape) > 1 and shape[-1] == tensor.channels
    return (KernelNode(lambda: graph.packed(data)), False) if same else None


def _layer_norm(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """A layer normalisation that products alone read: it is written as they read it."""
    normalised = normalised_rows(call)
    shape = static_shape(call)
    if normalised is None or not graph.everywhere or len(shape) < 2 or shape[-1] % LANES:
        return None
    data, scale, offset, epsilon = normalised
    vectors = all(is_tensor_constant(item) and static_shape(item) == shape[-1:] for item in (scale, offset))
    if not (vectors and isinstance(data, relax.Var) and _feeds_products(graph, graph.current, is_image=False)):
        return None
    if not graph.has_layout(data, is_image=False):
        return None
    rows = (prod(shape[:-1]), shape[-1])

    def make() -> Expr:
        image = graph.packed(data, DTYPE if graph.has_node(data) else FLOAT)
        dtype = str(image.ty.dtype)
        lanes = lanes_of(rows[1])
        program = layer_norm(rows, lanes, epsilon, dtype=dtype, read=to_float, write=from_float)
        operands = [graph.emit(relax.op.reshape(image, rows)), scale, offset]
        result = graph.kernel(program, "bfloat16_layer_norm", operands, rows, DTYPE)
        return graph.emit(relax.op.reshape(result, (1, 1, rows[0], rows[1] // LANES, LANES)))

    return KernelNode(make), False


def _feeds_products(graph: PackedGraph, var: Var, *, is_image: bool) -> bool:
    """Whether only products read a variable, as an image or as rows, also where they read it in another shape."""
    readers = graph.readers(var)
    return bool(readers) and all(_is_for_product(graph, var, *reader, is_image=is_image) for reader in readers)


def _is_for_product(graph: PackedGraph, var: Var, reader: Var, value: Expr, *, is_image: bool) -> bool:
    name = op_name(value)
    if name == ("relax.nn.conv2d" if is_image else "relax.matmul"):
        return bool(value.args[0].same_as(var)) and is_computed(value)
    to_image = name == "relax.permute_dims" and axes_of(value) == TO_FIRST and not is_image
    same = name == "relax.reshape" and static_shape(value)[-1:] == static_shape(var)[-1:] and not is_image
    return (to_image or same) and _feeds_products(graph, reader, is_image=to_image)


def _permute(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """Channels that go from the last axis to the second, or back. An image and its pixels as rows are packed alike."""
    data = call.args[0]
    axes = axes_of(call)
    to_image = axes == TO_FIRST
    if not (graph.everywhere and isinstance(data, relax.Var) and (to_image or axes == TO_LAST)):
        return None
    whole = static_shape(call)[1 if to_image else 3] % LANES == 0
    is_packed = graph.has_node(data) or (to_image and _feeds_products(graph, graph.current, is_image=True))
    if not (whole and is_packed and graph.has_layout(data, is_image=not to_image)):
        return None
    return Same(data), to_image


def _concat(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """Channels put together."""
    join = Join.of(call, lambda expr: expr)
    images = join is not None and all(graph.is_packed(item, is_image=True) for item in join.images)
    if join is None or not images or not join.is_whole:
        return None
    return KernelNode(lambda: join.call(graph, BFLOAT16, [graph.packed(item) for item in join.images])), True


def _some_channels(graph: PackedGraph, part: Part | None) -> tuple[Node, bool] | None:
    """So many channels of an image, from one on."""
    if part is None or not graph.is_packed(part.image, is_image=True) or not part.is_whole:
        return None
    return KernelNode(lambda: part.call(graph, BFLOAT16, graph.packed(part.image))), True


def _resize(graph: PackedGraph, call: Call) -> tuple[Node, bool] | None:
    """An image whose pixels are repeated a whole number of times."""
    enlargement = Enlargement.of(call)
    if not graph.is_packed(call.args[0], is_image=True) or enlargement is None:
        return None
    return KernelNode(lambda: enlargement.call(graph, BFLOAT16, graph.packed(enlargement.image))), True


_HANDLERS: Mapping[str, _Handler] = {
    "relax.nn.conv2d": conv2d,
    "relax.matmul": matmul,
    **dict.fromkeys(FUNCTIONS, _elementwise),
    **dict.fromkeys(POOLS, _pool),
    "relax.reshape": _reshape,
    "relax.squeeze": _reshape,
    "relax.nn.layer_norm": _layer_norm,
    "relax.permute_dims": _permute,
    "relax.concat": _concat,
    "relax.strided_slice": lambda graph, call: _some_channels(graph, Part.of_slice(call)),
    "relax.image.resize2d": _resize,
}
