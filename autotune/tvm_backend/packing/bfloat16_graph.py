"""The graph of a network while it is rebuilt for bfloat16: its tensors, and the kernels that compute them.

A tensor is kept as an image of bfloat16 for as long as operators have kernels for it. Any other operator gets it in
float32, in the layout that the graph has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from tvm import relax, te

from autotune.tvm_backend.expressions import op_name, readers, static_shape, variables
from autotune.tvm_backend.graph.rewrite import Rewriter
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE
from autotune.tvm_backend.isa.choice import computes_bfloat16
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import bfloat16_images as kernels
from autotune.tvm_backend.operators.bfloat16_images import number
from autotune.tvm_backend.packing.inlining import Elementwise, KernelNode, Node, ProductNode, Same, inlined
from autotune.tvm_backend.packing.weights import by_channel
from autotune.tvm_backend.types import Expr, IRModule, PrimExpr, Target, TensorExpr, Var

Shape = tuple[int, ...]
FLOAT = "float32"
_DEEPEST = 16  # products one after the other that are not computed yet: more would exceed Python's recursion limit


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


class PackedGraph(Rewriter):
    """Rebuilds `main`, and makes the forms of its tensors when they are needed. A subclass knows the operators."""

    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target
        self.everywhere = computes_bfloat16(target)
        self._tensors: dict[Var, _Tensor] = {}
        self._nodes: dict[Var, Node] = {}
        self._read_as = set[Var]()  # what a kernel reads as an image, or as rows
        self._depths: dict[Var, int] = {}
        self._splits: dict[Var, Expr] = {}  # of images; one whose parts are all read as images is never emitted
        self.current: Var = None  # what the operator that is looked at computes
        self._readers = readers(self.function)
        self._uses = Counter(variables(self.function.body.body))
        self._uses.update({var: len(reading) for var, reading in self._readers.items()})

    def visit(self, var: Var, value: Expr) -> None:
        if op_name(value) == "relax.split" and self.is_packed(value.args[0], is_image=True):
            self._splits[var] = value
            return
        shape = static_shape(value)
        floats = shape and str(value.ty.dtype) == FLOAT and all(shape)
        self.current = var
        made = self.operator(value) if floats else None
        if made is None:
            self._tensors[var] = _Tensor(shape, len(shape) == 4, self.builder.emit(self.rebuild(value), var.name))
            return
        node, is_image = made
        self._bound_depth(var, value, node)
        self._nodes[var] = node
        self._tensors[var] = _Tensor(shape, is_image)

    def _bound_depth(self, var: Var, value: Expr, node: Node) -> None:
        """Compute the operands of a product after many products of which none is computed."""
        is_product = isinstance(node, ProductNode)
        for compute, operand in zip((self.packed, self.plain), value.args if is_product else (), strict=False):
            if self._depth_before(value) >= _DEEPEST and self.has_node(operand):
                compute(operand)
        self._depths[var] = self._depth_before(value) + is_product

    def _depth_before(self, value: Expr) -> int:
        return max((self._depth(item) for item in variables(value)), default=0)

    def _depth(self, var: Var) -> int:
        tensor = self._tensors.get(var)
        if tensor is None and var in self._splits:
            return self._depth(self._splits[var].args[0])
        computed = tensor is None or tensor.packed or tensor.plain is not None
        return 0 if computed else self._depths.get(var, 0)

    def operator(self, value: Expr) -> tuple[Node, bool] | None:
        """Return what computes a value in bfloat16, and whether the result is an image; None if nothing does."""
        raise NotImplementedError

    def plain(self, var: Var) -> Expr:
        tensor = self._tensors.get(var)
        if tensor is None and var in self._splits:
            tensor = self._tensors[var] = _Tensor((), False, self.emit(self.rebuild(self._splits[var])))
        if tensor is None:
            return var
        if tensor.plain is None:
            tensor.plain = self._as_in_graph(self.packed(var, FLOAT), tensor)
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

    def readers(self, var: Var) -> list[tuple[Var, Expr]]:
        """Return what reads a variable, as variables and their values; nothing if it is an output, too."""
        reading = self._readers.get(var, [])
        return reading if len(reading) == self._uses[var] else []

    def split(self, var: Var) -> Expr | None:
        """Return the operator that a variable has the parts of an image from; None if it is something else."""
        return self._splits.get(var)

    def has_layout(self, var: Var, *, is_image: bool) -> bool:
        """Return whether a variable is an image, or rows. Who asks first decides, unless a kernel makes it."""
        tensor = self.tensor(var)
        if var not in self._nodes and var not in self._read_as:
            tensor.is_image = is_image and len(tensor.shape) == 4
        self._read_as.add(var)
        return tensor.is_image == is_image

    def has_node(self, expr: Expr) -> bool:
        """Return whether an expression is a variable that is computed in bfloat16."""
        return expr in self._nodes

    def is_packed(self, expr: Expr, *, is_image: bool) -> bool:
        """Return whether an expression is a variable that has, or will have, a packed form."""
        return self.has_node(expr) and self.tensor(expr).is_image == is_image

    def packed(self, var: Var, dtype: str = DTYPE, lanes: int = LANES) -> Expr:
        """Return a variable as an image of a type. A kernel computes it if there is none yet."""
        tensor = self.tensor(var)
        if (dtype, lanes) not in tensor.packed:
            tensor.packed[dtype, lanes] = self._make_packed(var, tensor, dtype, lanes)
        return tensor.packed[dtype, lanes]

    def _make_packed(self, var: Var, tensor: _Tensor, dtype: str, lanes: int) -> Expr:
        node = self._nodes.get(var)
        if dtype == FLOAT and tensor.plain is not None and not tensor.is_image:
            return self._pack(tensor, dtype, lanes)  # not from what is rounded
        others = [image for (_, block), image in tensor.packed.items() if block == lanes]
        if others:
            return self._converted(others[0], dtype)
        if node is None or tensor.plain is not None:
            return self._pack(tensor, dtype, lanes)
        if isinstance(node, Same):
            return self.emit(relax.op.reshape(self.packed(node.operand, dtype, lanes), tensor.packed_shape(lanes)))
        if isinstance(node, KernelNode):
            made = node.call()
            return made if str(made.ty.dtype) == dtype else self._converted(made, dtype)
        return self._computed(var, tensor, dtype)

    def _converted(self, image: Expr, dtype: str) -> Expr:
        data = _placeholder(image, "data")
        shape = static_shape(image)
        program = kernels.elementwise_program([data], shape, lambda *position: number(data, *position), dtype)
        return self.kernel(program, "bfloat16_convert", [image], shape, dtype)

    def _pack(self, tensor: _Tensor, dtype: str, lanes: int) -> Expr:
        if tensor.is_image and len(tensor.shape) == 4:
            image = self.kernel(
                kernels.pack_program(tensor.shape, lanes),
                "bfloat16_pack",
                [tensor.plain],
                tensor.packed_shape(lanes),
                DTYPE,
            )
            return image if dtype == DTYPE else self._converted(image, dtype)
        rows = prod(tensor.shape[:-1])
        channels = tensor.channels
        flat = self.emit(relax.op.reshape(tensor.plain, (rows, channels)))
        if channels % LANES:
            flat = self.emit(relax.op.nn.pad(flat, [0, 0, 0, -channels % LANES]))
        image = self.emit(relax.op.reshape(flat, tensor.packed_shape()))
        return image if dtype == FLOAT else self._converted(image, dtype)

    def _as_in_graph(self, image: Expr, tensor: _Tensor) -> Expr:
        """An image in the layout that the graph has."""
        if tensor.is_image:
            return self.unpacked(image, tensor.shape)
        channels = prod(static_shape(image)[-2:])
        return self.cut(self.emit(relax.op.reshape(image, (*tensor.shape[:-1], channels))), tensor.channels)

    def _computed(self, root: Var, tensor: _Tensor, dtype: str) -> Expr:
        """Compute a variable, and what only it needs, by one kernel."""

        def fits(var: Var) -> bool:
            other = self.tensor(var)
            done = other.packed or other.plain is not None
            return not done and (other.shape, other.is_image) == (tensor.shape, tensor.is_image)

        chosen = inlined(root, self._nodes, fits, self._uses)
        arguments = _Arguments(self, tensor, {var: self._nodes[var] for var in chosen}, tensor.packed_shape())
        product = next((node for node in arguments.nodes.values() if isinstance(node, ProductNode)), None)
        shape = tensor.packed_shape()
        if product is None:
            element = arguments.element(root, None)
            program = kernels.elementwise_program(arguments.placeholders, shape, element, dtype)
            return self.kernel(program, "bfloat16_elementwise", arguments.operands, shape, dtype)
        sums = product.sums(*(arguments.add(item) for item in product.operands()))
        arguments.shape = tuple(map(int, sums.shape))
        element = arguments.element(root, sums)
        program = kernels.product_program(arguments.placeholders, sums, element, dtype)
        image = self.kernel(program, product.name, arguments.operands, arguments.shape, dtype)
        return image if static_shape(image) == shape else self.emit(relax.op.reshape(image, shape))


@dataclass
class _Arguments:
    """The arguments of a kernel, as it collects them.

    Attributes:
        graph: Packs them.
        tensor: The result of the kernel.
        nodes: What the kernel computes, by variable.
        shape: In which it computes the result.
    """

    graph: PackedGraph
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
        if isinstance(node, ProductNode):
            assert sums is not None
            return lambda *position: sums[position]
        assert isinstance(node, Elementwise)
        elements = [self._operand(item, sums) for item in node.operands]
        return lambda *position: node.function(*(element(*position) for element in elements))

    def _operand(self, operand: Expr | float, sums: TensorExpr | None) -> Callable[..., PrimExpr]:
        if isinstance(operand, float):
            return lambda *_at: te.const(operand, FLOAT)
        if not isinstance(operand, relax.Var):
            values = operand.value.numpy()
            vectors = self.add(relax.const(by_channel(values, values.size, np.float32), FLOAT))
            return lambda *position: vectors[position[-2:]]
        if operand in self.nodes:
            return self.element(operand, sums)
        expr = self._image(operand)
        if self.graph.tensor(operand).shape != self.tensor.shape:
            pixel = self.add(expr)
            return lambda n, _y, _x, *channel: number(pixel, n, 0, 0, *channel)
        same = static_shape(expr) == self.shape
        image = self.add(expr if same else self.graph.emit(relax.op.reshape(expr, self.shape)))
        return lambda *position: number(image, *position)

    def _image(self, var: Var) -> Expr:
        """An operand as it is there already; otherwise as bfloat16."""
        tensor = self.graph.tensor(var)
        rows = not tensor.is_image and tensor.plain is not None and tensor.channels % LANES == 0
        if (FLOAT, LANES) in tensor.packed or (rows and not tensor.packed):
            return self.graph.packed(var, FLOAT)
        return self.graph.packed(var)


def _placeholder(expr: Expr, name: str) -> TensorExpr:
    return te.placeholder(static_shape(expr), str(expr.ty.dtype), name)
