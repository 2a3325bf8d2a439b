"""The graph of a network while it is rebuilt for bfloat16: its tensors, and the kernels that compute them.

A tensor is kept as an image of bfloat16 for as long as operators have kernels for it. Any other operator gets it in
float32, in the layout that the graph has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from tvm import relax, te

from autotune.tvm_backend.expressions import op_name, static_shape, values_of, variables
from autotune.tvm_backend.intrinsics.bfloat16 import DTYPE
from autotune.tvm_backend.isa.available import computes_bfloat16
from autotune.tvm_backend.isa.values import LANES
from autotune.tvm_backend.operators import bfloat16_images as kernels
from autotune.tvm_backend.operators.bfloat16_images import number
from autotune.tvm_backend.packing.chunked_weights import by_channel
from autotune.tvm_backend.packing.encodings import PLAIN, Encoding, Forms, Result, Shape
from autotune.tvm_backend.packing.inlining import Elementwise, KernelNode, Node, ProductNode, Same, inlined
from autotune.tvm_backend.packing.packed_graph import PackedGraph
from autotune.tvm_backend.types import Expr, IRModule, PrimExpr, Target, TensorExpr, Var

ChunkLayout = Literal["image", "rows"]
FLOAT = "float32"
_DEEPEST = 16  # products one after the other that are not computed yet: more would exceed Python's recursion limit


class Bfloat16Graph(PackedGraph):
    """Keeps images and rows in chunks of bfloat16, and computes them when they are needed."""

    def __init__(self, mod: IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target
        self.everywhere = computes_bfloat16(target)
        self._nodes: dict[Var, Node] = {}
        self._layouts: dict[Var, ChunkLayout] = {}
        self._read_as = set[Var]()  # what a kernel reads as an image, or as rows
        self._depths: dict[Var, int] = {}
        self._uses = Counter(variables(self.function.body.body))
        self._uses.update({var: len(reading) for var, reading in self._readers.items()})

    def packed_forms(self, result: Result, value: Expr) -> Forms | None:
        if op_name(value) == "relax.split" and self.is_packed(value.args[0], is_image=True):
            return self.defer(result.var, lambda _plain: self.emit(self.rebuild(value)))  # if its parts are not images
        floats = result.shape and str(value.ty.dtype) == FLOAT and all(result.shape)
        return super().packed_forms(result, value) if floats else None

    def compute(self, result: Result, node: Node, *, is_image: bool) -> Forms:
        """Compute a result in bfloat16 when it is needed.

        Args:
            node: What computes it.
            is_image: Whether its second axis has the channels, and not its last.
        """
        var = result.var
        self._bound_depth(var, node)
        self._nodes[var] = node
        self._layouts[var] = "image" if is_image else "rows"
        return self.defer(var, lambda encoding: self._computed(var, node, encoding))

    def _bound_depth(self, var: Var, node: Node) -> None:
        """Compute the operands of a product after many products of which none is computed."""
        value = self.values[var]
        is_product = isinstance(node, ProductNode)
        for compute, operand in zip((self.chunks, self.plain), value.args if is_product else (), strict=False):
            if self._depth_before(value) >= _DEEPEST and self.has_node(operand):
                compute(operand)
        self._depths[var] = self._depth_before(value) + is_product

    def _depth_before(self, value: Expr) -> int:
        return max((self._depth(item) for item in variables(value)), default=0)

    def _depth(self, var: Var) -> int:
        value = self.value(var)
        if op_name(value) == "relax.split":
            return self._depth(value.args[0])
        return 0 if self._forms.get(var, True) else self._depths[var]

    def bind(self, var: Var, expr: Expr) -> None:
        super().bind(var, expr)
        self._nodes.pop(var, None)
        self._layouts.pop(var, None)

    def readers(self, var: Var) -> list[tuple[Var, Expr]]:
        """Return what reads a variable, as variables and their values; nothing if it is an output, too."""
        reading = self._readers.get(var, [])
        return reading if len(reading) == self._uses[var] else []

    def layout(self, var: Var) -> ChunkLayout:
        """Return in which layout the chunks of a variable are."""
        return self._layouts.get(var, "image" if len(static_shape(var)) == 4 else "rows")

    def has_layout(self, var: Var, *, is_image: bool) -> bool:
        """Return whether a variable is an image, or rows. Who asks first decides, unless a kernel makes it."""
        if var not in self._nodes and var not in self._read_as:
            self._layouts[var] = "image" if is_image and len(static_shape(var)) == 4 else "rows"
        self._read_as.add(var)
        return (self.layout(var) == "image") == is_image

    def has_node(self, expr: Expr) -> bool:
        """Return whether an expression is a variable that is computed in bfloat16."""
        return expr in self._nodes

    def is_packed(self, expr: Expr, *, is_image: bool) -> bool:
        """Return whether an expression is a variable that has, or will have, a packed form."""
        return self.has_node(expr) and (self.layout(expr) == "image") == is_image

    def chunks(self, var: Var, dtype: str = DTYPE, lanes: int = LANES) -> Expr:
        """Return a variable in chunks of a type, as the image or the rows that it is."""
        return self.form(var, Encoding(self.layout(var), lanes, dtype))

    def chunked_shape(self, var: Var, lanes: int = LANES) -> Shape:
        """Return the shape of a variable in chunks."""
        return Encoding(self.layout(var), lanes).shape_of(static_shape(var))

    def converted(self, var: Var, encoding: Encoding) -> Expr:
        if encoding == PLAIN:
            return self._as_in_graph(var)
        forms = self.forms(var)
        alike = [expr for other, expr in forms.items() if other.lanes == encoding.lanes]
        exact = encoding.dtype == FLOAT and encoding.layout == "rows" and PLAIN in forms
        if alike and not exact:  # what is rounded is made of what is not
            return self._converted(alike[0], encoding.dtype)
        return self._pack(var, encoding)

    def _converted(self, image: Expr, dtype: str) -> Expr:
        if str(image.ty.dtype) == dtype:
            return image
        data = _placeholder(image, "data")
        shape = static_shape(image)
        program = kernels.elementwise_program([data], shape, lambda *position: number(data, *position), dtype)
        return self.kernel(program, kernels.CONVERT, [image], shape, dtype)

    def _pack(self, var: Var, encoding: Encoding) -> Expr:
        shape = static_shape(var)
        plain = self.plain(var)
        if encoding.layout == "rows":
            return self._converted(self.rows_in_chunks(plain, encoding), encoding.dtype)
        program = kernels.pack_program(shape, encoding.lanes)
        image = self.kernel(program, "bfloat16_pack", [plain], encoding.shape_of(shape), DTYPE)
        return self._converted(image, encoding.dtype)

    def _as_in_graph(self, var: Var) -> Expr:
        image = self.chunks(var, FLOAT)
        shape = static_shape(var)
        return self.unpacked(image, shape) if self.layout(var) == "image" else self.as_rows(image, shape)

    def _computed(self, var: Var, node: Node, encoding: Encoding) -> Expr:
        if encoding == PLAIN:
            return self._as_in_graph(var)
        if isinstance(node, Same):
            same = self.chunks(node.operand, encoding.dtype, encoding.lanes)
            return self.emit(relax.op.reshape(same, self.chunked_shape(var, encoding.lanes)))
        if isinstance(node, KernelNode):
            return self._converted(node.call(), encoding.dtype)
        return self._with_inlined(var, encoding.dtype)

    def _with_inlined(self, root: Var, dtype: str) -> Expr:
        """Compute a variable, and what only it needs, by one kernel."""

        def fits(var: Var) -> bool:
            alike = static_shape(var) == static_shape(root) and self.layout(var) == self.layout(root)
            return alike and not self.forms(var)

        chosen = inlined(root, self._nodes, fits, self._uses)
        shape = self.chunked_shape(root)
        arguments = _Arguments(self, root, {var: self._nodes[var] for var in chosen}, shape)
        product = next((node for node in arguments.nodes.values() if isinstance(node, ProductNode)), None)
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
    """The arguments of a kernel, as it collects them."""

    graph: Bfloat16Graph  # packs them
    root: Var  # the result of the kernel
    nodes: Mapping[Var, Node]  # what the kernel computes, by variable
    shape: Shape  # in which it computes the result
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
            values = values_of(operand)
            vectors = self.add(relax.const(by_channel(values, values.size, np.float32), FLOAT))
            return lambda *position: vectors[position[-2:]]
        if operand in self.nodes:
            return self.element(operand, sums)
        expr = self._image(operand)
        if static_shape(operand) != static_shape(self.root):
            pixel = self.add(expr)
            return lambda n, _y, _x, *channel: number(pixel, n, 0, 0, *channel)
        same = static_shape(expr) == self.shape
        image = self.add(expr if same else self.graph.emit(relax.op.reshape(expr, self.shape)))
        return lambda *position: number(image, *position)

    def _image(self, var: Var) -> Expr:
        """An operand as it is there already; otherwise as bfloat16."""
        layout = self.graph.layout(var)
        forms = self.graph.forms(var)
        only_rows = layout == "rows" and list(forms) == [PLAIN] and static_shape(var)[-1] % LANES == 0
        is_float = only_rows or Encoding(layout, LANES, FLOAT) in forms
        return self.graph.chunks(var, FLOAT if is_float else DTYPE)


def _placeholder(expr: Expr, name: str) -> TensorExpr:
    return te.placeholder(static_shape(expr), str(expr.ty.dtype), name)
