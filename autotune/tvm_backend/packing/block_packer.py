"""The graph of a network while images of float32 are packed in blocks of channels, as its plan and the rules say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd

from tvm import relax

from autotune.network_plan.plan import Algorithm, Layout, Plan
from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, op_name, static_shape
from autotune.tvm_backend.graph.blocks import ALGORITHMS, LAYOUTS, operator_of
from autotune.tvm_backend.operators.convolution import PLAIN as PLAIN_BLOCK
from autotune.tvm_backend.operators.convolution import choose_block, pack_constant, packable, te_convert
from autotune.tvm_backend.operators.element_functions import FUNCTIONS
from autotune.tvm_backend.operators.winograd import winograd_refusal
from autotune.tvm_backend.packing.encodings import PLAIN, Encoding, Forms, Result, blocks, in_blocks
from autotune.tvm_backend.packing.image_operators import ImageOperator, Join
from autotune.tvm_backend.packing.packed_graph import PackedGraph
from autotune.tvm_backend.types import Call, Expr, IRModule, Var


class LayoutPacker(PackedGraph):
    """Keeps float32 images in blocks of channels."""

    def __init__(
        self,
        mod: IRModule,
        lanes: int,
        winograd: Callable[[Expr], bool] | None,
        registers: tuple[int, int] | None,
        plan: Plan,
    ) -> None:
        super().__init__(mod)
        self.registers = registers
        self.plan = plan
        self.chosen: dict[str, Algorithm] = {}
        self.layouts: dict[str, Layout] = {}
        self._wanted = plan.algorithms()
        self._wanted_layouts = plan.layouts()
        self.lanes = lanes
        self.winograd = winograd

    def run(self) -> IRModule:
        mod = super().run()
        mod["main"] = mod["main"].with_attr({ALGORITHMS: self.chosen, LAYOUTS: self.layouts})
        return mod

    def visit(self, var: Var, value: Expr) -> None:
        same = self._same(value)
        if same is None:
            super().visit(var, value)
            return
        self.values[var] = value
        self._forms[var] = self.forms(same)

    def packed_forms(self, result: Result, value: Expr) -> Forms | None:
        return super().packed_forms(result, value) if float_dtype(value) is not None else None

    def elementwise(self, call: Call, result: Result) -> Forms | None:
        """Pack an elementwise operator if one of its tensor operands is packed. Its other arguments are numbers."""
        tensors = [item for item in call.args if isinstance(item.ty, relax.TensorType)]
        block = next(filter(None, map(self.block_of, tensors)), PLAIN_BLOCK)
        if block == PLAIN_BLOCK or len(result.shape) != 4 or not all(packable(x, result.shape[1]) for x in tensors):
            return None
        if not FUNCTIONS[op_name(call)].is_finite and result.shape[1] % block:
            return None
        operands = [self.operand(item, block) for item in tensors]
        return in_blocks(block, relax.Call(call.op, [*operands, *call.args[len(tensors) :]], call.attrs, call.ty_args))

    def moved(self, operator: ImageOperator, result: Result) -> Forms | None:
        """Pack an operator if one of its images is packed, and its blocks divide what it moves."""
        block = self._joined_block(operator) if isinstance(operator, Join) else self.block_of(operator.images[0])
        if block == PLAIN_BLOCK or not operator.fits(block):
            return None
        images = [self.operand(item, block) for item in operator.images]
        return operator.in_blocks(images, block, partial(self.builder.emit, name_hint=result.var.name))

    def _joined_block(self, join: Join) -> int:
        channels = [static_shape(item)[1] for item in join.images]
        fitting = all(packable(item, count) for item, count in zip(join.images, channels, strict=True))
        is_packed = fitting and any(map(self.block_of, join.images))
        return choose_block(gcd(*channels), self.lanes, exact=True) if is_packed else PLAIN_BLOCK

    def block_of(self, expr: Expr) -> int:
        """Return the block that an old variable is packed with; PLAIN_BLOCK if it is not packed."""
        return next((form.lanes for form in self._forms.get(expr, ()) if form != PLAIN), PLAIN_BLOCK)

    def block(self, var: Var, block: int) -> Expr:
        """Return an old variable (N, C, H, W) packed with a block."""
        return self.form(var, blocks(block))

    def operand(self, expr: Expr, block: int) -> Expr:
        """Return a packable operand packed."""
        return pack_constant(expr, block) if is_tensor_constant(expr) else self.block(expr, block)

    def block_out(self, result: Result, chosen: int, channels: int, exact: bool) -> int:
        """Return the block for the result of a convolution: that of the plan, or that which the rules have chosen.

        Args:
            result: What the convolution computes.
            chosen: The latter.
            channels: The channels of a group.
            exact: Whether a block has to divide them.
        """
        operator = operator_of(result.var)
        wanted = self._wanted_layouts.get(operator)
        if wanted is not None:
            block = int(wanted.removeprefix("NCHW").removesuffix("c"))
            if chosen == PLAIN_BLOCK or not _fits(block, channels, exact):
                raise self.plan.refusal(operator, f"layout = {wanted!r} does not fit {channels} channels of a group")
            chosen = block
        if chosen != PLAIN_BLOCK:
            self.layouts[operator] = f"NCHW{chosen}c"
        return chosen

    def algorithm(self, result: Result, call: Call, block_in: int, pixels: int) -> Algorithm:
        """Return how to compute a convolution: as the plan says, or as the rules do.

        Args:
            result: What it computes.
            block_in: The block of its input.
            pixels: What `padded_pixels` returned.
        """
        operator = operator_of(result.var)
        wanted = self._wanted.get(operator)
        if wanted is None:
            fast = self.winograd is not None and block_in != PLAIN_BLOCK and self.winograd(call)
            wanted = "winograd-4x4" if fast else "rows" if pixels else "direct"
        elif refusal := _refusal(wanted, call, block_in, pixels):
            raise self.plan.refusal(operator, refusal)
        self.chosen[operator] = wanted
        return wanted

    def _same(self, value: Expr) -> Expr | None:
        """Return the old variable that has the same value; None if there is none."""
        source = value
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            dropout: Expr = self.values.get(value.tuple_value)
            source = dropout.args[0] if op_name(dropout) == "relax.nn.dropout" else None
        elif op_name(value) in ("relax.broadcast_to", "relax.reshape"):
            source = value.args[0] if static_shape(value) == static_shape(value.args[0]) != () else None
        return source if isinstance(source, relax.Var) and source in self._forms else None

    def converted(self, var: Var, encoding: Encoding) -> Expr:
        source, expr = next(iter(self.forms(var).items()))  # the encoding in which it was computed
        before = source.lanes
        after = encoding.lanes
        batch, channels, height, width = shape = static_shape(var)
        if height == width == 1 and not (before and channels % before) and not (after and channels % after):
            return self.emit(relax.op.reshape(expr, (batch, channels // after, 1, 1, after) if after else shape))
        hint = "layout_repack" if before and after else "layout_pack" if after else "layout_unpack"
        made = self.builder.call_te(lambda x: te_convert(x, channels, before, after), expr, primfunc_name_hint=hint)
        return self.emit(made)


def _fits(block: int, channels: int, exact: bool) -> bool:
    """Return whether so many channels can be in blocks of that size, which have to divide them if `exact`."""
    return block <= channels and not (exact and channels % block)


def _refusal(wanted: Algorithm, call: Call, block_in: int, pixels: int) -> str:
    """Return why a convolution cannot be computed so; empty if it can."""
    if tile := winograd_tile(wanted):
        return winograd_refusal(call, tile) or (
            "winograd is for inputs of at least 8 channels" if block_in == PLAIN_BLOCK else ""
        )
    if wanted in ("packed", "plain"):
        return f"{wanted} is for products"
    if wanted == "rows" and not pixels:
        return "rows is for images with no good tile in the registers; this one has one, or strides, or few channels"
    return ""


def winograd_tile(algorithm: Algorithm) -> int:
    """Return the rows and columns of a tile of Winograd's algorithm; 0 for another one."""
    return {"winograd-2x2": 2, "winograd-4x4": 4}.get(algorithm, 0)
