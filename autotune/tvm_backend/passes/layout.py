"""Give convolutions, and the operators between them, a channel-blocked layout: about twice as fast on a CPU.

A tensor (N, C, H, W) that is packed with block b has shape (N, ceil(C / b), H, W, b). Channel c is in chunk c // b and
lane c % b. The last chunk may have padding lanes. They hold finite values, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Any

from tvm import relax

from autotune.plans.plan import NOTHING, Algorithm, Layout, Plan
from autotune.tvm_backend.passes.blocks import ALGORITHMS, LAYOUTS, operator_of
from autotune.tvm_backend.passes.convolution import (
    PLAIN,
    Array,
    ConvolutionGeometry,
    as_channels,
    choose_block,
    constant,
    pack_channels,
    pack_constant,
    pack_weight,
    packable,
    separate_windows,
    te_conv,
    te_conv_transpose,
    te_convert,
    te_depthwise,
    te_spread,
)
from autotune.tvm_backend.passes.pixel_tiles import padded_pixels, te_conv_pixels
from autotune.tvm_backend.passes.rewrite import (
    Rewriter,
    float_dtype,
    is_tensor_constant,
    op_name,
    plain_convolution,
    rewrite_and_clean,
    static_shape,
)
from autotune.tvm_backend.passes.winograd import te_winograd, transform_weight, winograd_refusal
from autotune.tvm_backend.types import Call, Expr, IRModule, Var

# TVM's number for an operator that is fused with the elementwise operators after it. TVM itself does not find this
# pattern in a program with several loop nests.
_OUT_ELEMENTWISE_FUSABLE = 4


def pack_layouts(
    mod: IRModule,
    *,
    lanes: int = 16,
    winograd: Callable[[Expr], bool] | None = None,
    registers: tuple[int, int] | None = None,
    plan: Plan = NOTHING,
) -> Any:
    """Rewrite `main` so that convolutions with constant weights, and the operators around them, use packed tensors.

    An operator that cannot be packed gets plain operands, so the function computes the same as before. Its inputs and
    outputs stay plain.

    Args:
        mod: A module before LegalizeOps, with its constants folded. The parameters of layers are Relax constants.
        lanes: The largest block: the elements of a vector register, or twice as many.
        winograd: Says whether to compute a convolution with Winograd's algorithm; None for never.
        registers: What `vector_registers` returns for the target. Images that have no good tile in such registers are
            computed as rows of pixels; without it, none.
        plan: Chooses algorithms and layouts, by the names of `name_operators`.

    Returns:
        The rewritten module, or `mod` if `main` cannot be rewritten. Its attribute `ALGORITHMS` says how each
        convolution is computed, and `LAYOUTS` in which layout.

    Raises:
        BadInput: An algorithm or a layout that the plan chooses does not fit its convolution.
    """
    return rewrite_and_clean(mod, lambda module: _LayoutPacker(module, lanes, winograd, registers, plan))


@dataclass(frozen=True)
class _Form:
    """The new expression of a binding, and the block that it is packed with; PLAIN if it is not packed."""

    block: int
    expr: Expr


class _LayoutPacker(Rewriter):
    """Keeps the plain and packed forms of each old variable, and makes missing forms when they are needed."""

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
        self._var: Var = None
        self.lanes = lanes
        self.winograd = winograd
        self.values: dict[Var, Expr] = {}
        self._forms: dict[Any, dict[int, Expr]] = {param: {PLAIN: param} for param in self.function.params}

    def run(self) -> Any:
        mod = super().run()
        mod["main"] = mod["main"].with_attr({ALGORITHMS: self.chosen, LAYOUTS: self.layouts})
        return mod

    def visit(self, var: Var, value: Expr) -> None:
        self.values[var] = value
        self._var = var
        same = self._same(value)
        if same is not None:
            self._forms[var] = self._forms[same]
            return
        handler = _part if isinstance(value, relax.TupleGetItem) else _HANDLERS.get(op_name(value))
        form = handler(self, value) if handler is not None and float_dtype(value) is not None else None
        form = form or _Form(PLAIN, self.rebuild(value))
        self._forms[var] = {form.block: self.builder.emit(form.expr, var.name)}

    def plain(self, var: Var) -> Expr:
        return self.form(var, PLAIN) if var in self._forms else var

    def bind(self, var: Var, expr: Expr) -> None:
        self._forms[var] = {PLAIN: expr}

    def enter_block(self) -> dict[Any, dict[int, Expr]]:
        return {var: dict(forms) for var, forms in self._forms.items()}

    def leave_block(self, before: Any) -> None:
        self._forms = before

    def block_of(self, expr: Expr) -> int:
        """Return the block that an old variable is packed with; PLAIN if it is not packed."""
        return next((block for block in self._forms.get(expr, ()) if block != PLAIN), PLAIN)

    def form(self, var: Var, block: int) -> Expr:
        """Return an old variable (N, C, H, W) packed with a block. It is converted if there is no such form yet."""
        forms = self._forms[var]
        if block not in forms:
            source = next(iter(forms))  # the form in which it was computed
            forms[block] = self.builder.emit(self._convert(forms[source], static_shape(var), source, block))
        return forms[block]

    def operand(self, expr: Expr, block: int) -> Expr:
        """Return a packable operand packed."""
        return pack_constant(expr, block) if is_tensor_constant(expr) else self.form(expr, block)

    def operands(self, exprs: list[Expr], value: Expr) -> tuple[int, list[Expr]] | None:
        """Return the block and the packed operands of an elementwise operator.

        Returns None unless one of the operands is packed already and all of them can be packed.
        """
        shape = static_shape(value)
        block = next(filter(None, map(self.block_of, exprs)), PLAIN)
        if block == PLAIN or len(shape) != 4 or not all(packable(item, shape[1]) for item in exprs):
            return None
        return block, [self.operand(item, block) for item in exprs]

    def emit(self, expr: Expr) -> Var:
        """Bind an expression that computes the operator, before others that only change the form of its result."""
        return self.builder.emit(expr, self._var.name)

    def block_out(self, chosen: int, channels: int, exact: bool) -> int:
        """Return the block for the result of a convolution: that of the plan, or that which the rules have chosen.

        Args:
            chosen: The latter.
            channels: The channels of a group.
            exact: Whether a block has to divide them.
        """
        operator = operator_of(self._var)
        wanted = self._wanted_layouts.get(operator)
        if wanted is not None:
            block = int(wanted.removeprefix("NCHW").removesuffix("c"))
            if chosen == PLAIN or block > channels or (exact and channels % block):
                raise self.plan.refusal(operator, f"layout = {wanted!r} does not fit {channels} channels of a group")
            chosen = block
        if chosen != PLAIN:
            self.layouts[operator] = f"NCHW{chosen}c"
        return chosen

    def algorithm(self, call: Call, block_in: int, pixels: int) -> Algorithm:
        """Return how to compute a convolution: as the plan says, or as the rules do.

        Args:
            call: The convolution.
            block_in: The block of its input.
            pixels: What `padded_pixels` returned.
        """
        operator = operator_of(self._var)
        wanted = self._wanted.get(operator)
        if wanted is None:
            fast = self.winograd is not None and block_in != PLAIN and self.winograd(call)
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

    def _convert(self, expr: Expr, shape: tuple[int, ...], source: int, wanted: int) -> Expr:
        batch, channels, height, width = shape
        if height == width == 1 and not (source and channels % source) and not (wanted and channels % wanted):
            flat = (batch, channels // wanted, 1, 1, wanted) if wanted else shape
            return relax.op.reshape(expr, flat)
        hint = "layout_repack" if source and wanted else "layout_pack" if wanted else "layout_unpack"
        return self.builder.call_te(
            lambda data: te_convert(data, channels, source, wanted), expr, primfunc_name_hint=hint
        )


def _refusal(wanted: Algorithm, call: Call, block_in: int, pixels: int) -> str:
    """Return why a convolution cannot be computed so; empty if it can."""
    if tile := _tile(wanted):
        return winograd_refusal(call, tile) or (
            "winograd is for inputs of at least 8 channels" if block_in == PLAIN else ""
        )
    if wanted in ("packed", "plain"):
        return f"{wanted} is for products"
    if wanted == "rows" and not pixels:
        return "rows is for images with no good tile in the registers; this one has one, or strides, or few channels"
    return ""


_Handler = Callable[[_LayoutPacker, Any], "_Form | None"]


def _conv2d(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a convolution.

    If the input has too few channels for a block, it stays plain. In a grouped convolution, blocks must divide the
    channels of a group.
    """
    if not plain_convolution(call):
        return None
    groups = int(call.attrs.groups)
    channels = static_shape(call.args[0])[1]
    outputs = static_shape(call)[1]
    if groups == channels == outputs > 1:
        return _depthwise(packer, call)
    exact = groups > 1
    inner = channels // groups
    block_in = packer.block_of(call.args[0])
    if block_in == PLAIN or (exact and inner % block_in):
        block_in = choose_block(inner, packer.lanes, exact=exact)
    block_out = packer.block_out(choose_block(outputs // groups, packer.lanes, exact=exact), outputs // groups, exact)
    if block_out == PLAIN or (exact and block_in == PLAIN):
        return None
    size = static_shape(call)[2:]
    registers = packer.registers
    pixels = (
        padded_pixels(size, outputs, block_out, registers) if registers and groups == 1 and block_in != PLAIN else 0
    )
    algorithm = packer.algorithm(call, block_in, pixels)
    if tile := _tile(algorithm):
        return _Form(block_out, _call_winograd(packer, call, block_in, block_out, tile))
    weight = pack_weight(call.args[1].value.numpy(), block_in, block_out)
    if algorithm == "rows":
        return _Form(block_out, _call_pixels(packer, call, block_in, weight, pixels))
    return _Form(block_out, _call_direct(packer, call, block_in, weight))


def _call_pixels(packer: _LayoutPacker, call: Call, block_in: int, weight: Array, pixels: int) -> Expr:
    return packer.builder.call_te(
        lambda x, k: te_conv_pixels(x, k, ConvolutionGeometry.of(call), pixels),
        packer.form(call.args[0], block_in),
        constant(weight, call),
        primfunc_name_hint="conv2d_NCHWc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _tile(algorithm: Algorithm) -> int:
    """Return the rows and columns of a tile of Winograd's algorithm; 0 for another one."""
    return {"winograd-2x2": 2, "winograd-4x4": 4}.get(algorithm, 0)


def _call_winograd(packer: _LayoutPacker, call: Call, block_in: int, block_out: int, tile: int) -> Expr:
    weight = transform_weight(call.args[1].value.numpy(), block_in, block_out, tile)
    return packer.builder.call_te(
        lambda x, k: te_winograd(x, k, ConvolutionGeometry.of(call)),
        packer.form(call.args[0], block_in),
        constant(weight, call),
        primfunc_name_hint="winograd_conv2d_NCHWc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _conv2d_transpose(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a transposed convolution. If it has too few outputs for a block, only its input is packed."""
    if not separate_windows(call):
        return None
    weight = call.args[1].value.numpy().transpose(1, 0, 2, 3)
    block_in = packer.block_of(call.args[0]) or choose_block(weight.shape[1], packer.lanes)
    block_out = choose_block(weight.shape[0], packer.lanes)
    data = packer.form(call.args[0], block_in)
    if block_out == PLAIN:
        return _Form(PLAIN, _spread(packer, call, data, block_in))
    packed = constant(pack_weight(weight, block_in, block_out), call)
    hint = "conv2d_transpose_NCHWc"
    return _Form(block_out, packer.builder.call_te(te_conv_transpose, data, packed, primfunc_name_hint=hint))


def _spread(packer: _LayoutPacker, call: Call, data: Expr, block_in: int) -> Expr:
    """Compute a transposed convolution as a 1x1 convolution with an output for each element of the kernel."""
    weight = as_channels(call.args[1].value.numpy())
    block_out = choose_block(len(weight), packer.lanes) or min(len(weight), packer.lanes)
    packed = constant(pack_weight(weight, block_in, block_out), call)
    pixels = ConvolutionGeometry(static_shape(call.args[0])[2:], (1, 1), (0, 0, 0, 0), (1, 1))
    hint = "conv2d_NCHWc"
    made = packer.builder.call_te(lambda x, k: te_conv(x, k, pixels), data, packed, primfunc_name_hint=hint)
    return packer.builder.call_te(te_spread, packer.builder.emit(made), static_shape(call), primfunc_name_hint="spread")


def _depthwise(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a depthwise convolution, but only if its input is packed: otherwise packing costs more than it gains."""
    block = packer.block_of(call.args[0])
    if block == PLAIN:
        return None
    weight = pack_channels(call.args[1].value.numpy().transpose(1, 0, 2, 3), block)[0]
    return _Form(block, _call_direct(packer, call, block, weight))


def _call_direct(packer: _LayoutPacker, call: Call, block: int, weight: Array) -> Expr:
    """Call a direct convolution on an input packed with `block`. Weights with 4 axes are depthwise ones."""
    geometry = ConvolutionGeometry.of(call)
    depthwise = weight.ndim == 4
    compute = te_depthwise if depthwise else te_conv
    hint = ("depthwise_" if depthwise else "group_" if call.attrs.groups > 1 else "") + "conv2d_NCHWc"
    operands = packer.form(call.args[0], block), constant(weight, call)
    return packer.builder.call_te(lambda x, k: compute(x, k, geometry), *operands, primfunc_name_hint=hint)


def _elementwise(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack an elementwise operator if one of its tensor operands is packed. Its other arguments are numbers."""
    tensors = [item for item in call.args if isinstance(item.ty, relax.TensorType)]
    operands = packer.operands(tensors, call)
    if operands is None:
        return None
    block, packed = operands
    if op_name(call) in _RISKY and static_shape(call)[1] % block:
        return None
    rest = call.args[len(tensors) :]
    return _Form(block, relax.Call(call.op, [*packed, *rest], call.attrs, call.ty_args))


def _windowed(make: Callable[..., Any], names: str) -> _Handler:
    """Return a handler that packs an operator on height and width.

    Args:
        make: Makes the operator, with a packed layout.
        names: The attributes to copy, separated by spaces.
    """

    def handler(packer: _LayoutPacker, call: Call) -> _Form | None:
        block = packer.block_of(call.args[0])
        if block == PLAIN or str(call.attrs.layout) != "NCHW":
            return None
        options: dict[str, Any] = {name: getattr(call.attrs, name) for name in names.split()}
        if "roi" in options:
            options["roi"] = [float(item) for item in options["roi"]]
        data = packer.form(call.args[0], block)
        return _Form(block, make(data, *call.args[1:], layout=f"NCHW{block}c", **options))

    return handler


def _reduce(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a mean, sum, maximum or minimum over exactly height and width."""
    block = packer.block_of(call.args[0])
    axes = call.attrs.axis
    if block == PLAIN or axes is None or sorted(int(axis) % 4 for axis in axes) != [2, 3]:
        return None
    make = getattr(relax.op, op_name(call).removeprefix("relax."))
    packed = packer.emit(make(packer.form(call.args[0], block), [2, 3], True))
    if call.attrs.keepdims:
        return _Form(block, packed)
    batch, channels = static_shape(call)
    if channels % block:
        return None
    return _Form(PLAIN, relax.op.reshape(packed, (batch, channels)))


def _sum(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Turn ONNX's Sum, which is imported as the sum over a stack, into additions. Other sums are reductions."""
    stack: Expr = packer.values.get(call.args[0])
    axes = [int(axis) for axis in call.attrs.axis or ()]
    stacked = op_name(stack) == "relax.stack" and int(stack.attrs.axis or 0) == 0
    if not stacked or axes != [0] or call.attrs.keepdims:
        return _reduce(packer, call)
    terms = list(stack.args[0].fields)
    block, packed = packer.operands(terms, call) or (PLAIN, [packer.leaf(item) for item in terms])
    return _Form(block, reduce(relax.op.add, packed))


def _slice(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a slice of height and width."""
    block = packer.block_of(call.args[0])
    if block == PLAIN or not all(int(axis.value) in (2, 3) for axis in call.args[1]):
        return None
    return _Form(block, relax.Call(call.op, [packer.form(call.args[0], block), *call.args[1:]], call.attrs))


def _concat(packer: _LayoutPacker, call: Call) -> _Form | None:
    """Pack a concatenation of channels, if a block divides the channels of every operand."""
    fields = call.args[0].fields
    if len(static_shape(call)) != 4 or int(call.attrs.axis) % 4 != 1:
        return None
    channels = [static_shape(item)[1] for item in fields]
    block = choose_block(gcd(*channels), packer.lanes, exact=True)
    if block == PLAIN:
        return None
    fitting = all(packable(item, count) for item, count in zip(fields, channels, strict=True))
    if not fitting or not any(packer.block_of(item) for item in fields):
        return None
    return _Form(block, relax.op.concat([packer.operand(item, block) for item in fields], axis=1))


def _part(packer: _LayoutPacker, item: Any) -> _Form | None:
    """Turn a part of channels that were split between chunks into a slice of the packed tensor."""
    split: Expr = packer.values.get(item.tuple_value)
    if op_name(split) != "relax.split" or len(static_shape(item)) != 4 or int(split.attrs.axis) % 4 != 1:
        return None
    block = packer.block_of(split.args[0])
    sizes = [int(part.shape.values[1]) for part in split.ty.fields]
    first = sum(sizes[: item.index])
    past = sum(sizes[: item.index + 1])
    if block == PLAIN or first % block or past % block:
        return None
    whole = packer.form(split.args[0], block)
    return _Form(block, relax.op.strided_slice(whole, axes=[1], begin=[first // block], end=[past // block]))


_POOL = "pool_size strides padding dilation ceil_mode count_include_pad"
_RESIZE = """roi method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude
    extrapolation_value"""
# For some finite operands the result is not finite. That must not happen in padding lanes.
_RISKY = ("relax.divide", "relax.power", "relax.log", "relax.rsqrt", "relax.sqrt")
_ELEMENTWISE = """abs add ceil clip divide erf exp floor log maximum minimum multiply negative power round
    rsqrt sigmoid sign sqrt square subtract tanh nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.relu6 nn.selu
    nn.silu nn.softplus"""
_HANDLERS: dict[str, _Handler] = {
    "relax.nn.conv2d": _conv2d,
    "relax.nn.conv2d_transpose": _conv2d_transpose,
    **{f"relax.{name}": _elementwise for name in _ELEMENTWISE.split()},
    "relax.nn.max_pool2d": _windowed(relax.op.nn.max_pool2d, _POOL),
    "relax.nn.avg_pool2d": _windowed(relax.op.nn.avg_pool2d, _POOL),
    "relax.nn.adaptive_avg_pool2d": _windowed(relax.op.nn.adaptive_avg_pool2d, "output_size"),
    "relax.image.resize2d": _windowed(relax.op.image.resize2d, _RESIZE),
    **{f"relax.{name}": _reduce for name in ("max", "mean", "min")},
    "relax.sum": _sum,
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
}
