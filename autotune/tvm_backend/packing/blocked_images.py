"""Give convolutions, and the operators between them, a channel-blocked layout: about twice as fast on a CPU.

A tensor (N, C, H, W) that is packed with block b has shape (N, ceil(C / b), H, W, b). Channel c is in chunk c // b and
lane c % b. The last chunk may have padding lanes. They hold finite values, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from tvm import relax

from autotune.plans.plan import NOTHING, Plan
from autotune.tvm_backend.expressions import op_name, plain_convolution, static_shape
from autotune.tvm_backend.graph.rewrite import rewrite_and_clean
from autotune.tvm_backend.operators.convolution import (
    PLAIN,
    Array,
    Window,
    as_channels,
    choose_block,
    constant,
    has_disjoint_windows,
    pack_channels,
    pack_weight,
    packable,
    te_conv,
    te_conv_transpose,
    te_depth_to_space,
    te_depthwise,
)
from autotune.tvm_backend.operators.pixel_tiles import padded_pixels, te_conv_pixels
from autotune.tvm_backend.operators.winograd import te_winograd, transform_weight
from autotune.tvm_backend.packing.block_packer import Form, LayoutPacker, winograd_tile
from autotune.tvm_backend.packing.image_operators import Join, Part, is_over_pixels
from autotune.tvm_backend.types import Call, Expr, IRModule

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
) -> IRModule:
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
    return rewrite_and_clean(mod, lambda module: _Operators(module, lanes, winograd, registers, plan))


class _Operators(LayoutPacker):
    def operator(self, value: Expr) -> Form | None:
        handler = _part if isinstance(value, relax.TupleGetItem) else _HANDLERS.get(op_name(value))
        return handler(self, value) if handler is not None else None


_Handler = Callable[[LayoutPacker, Expr], "Form | None"]


def _conv2d(packer: LayoutPacker, call: Call) -> Form | None:
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
    if tile := winograd_tile(algorithm):
        return Form(block_out, _call_winograd(packer, call, block_in, block_out, tile))
    weight = pack_weight(call.args[1].value.numpy(), block_in, block_out)
    if algorithm == "rows":
        return Form(block_out, _call_pixels(packer, call, block_in, weight, pixels))
    return Form(block_out, _call_direct(packer, call, block_in, weight))


def _call_pixels(packer: LayoutPacker, call: Call, block_in: int, weight: Array, pixels: int) -> Expr:
    return packer.builder.call_te(
        lambda x, k: te_conv_pixels(x, k, Window.of(call), pixels),
        packer.form(call.args[0], block_in),
        constant(weight, call),
        primfunc_name_hint="conv2d_NCHWc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _call_winograd(packer: LayoutPacker, call: Call, block_in: int, block_out: int, tile: int) -> Expr:
    weight = transform_weight(call.args[1].value.numpy(), block_in, block_out, tile)
    return packer.builder.call_te(
        lambda x, k: te_winograd(x, k, Window.of(call)),
        packer.form(call.args[0], block_in),
        constant(weight, call),
        primfunc_name_hint="winograd_conv2d_NCHWc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _conv2d_transpose(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack a transposed convolution. If it has too few outputs for a block, only its input is packed."""
    if not has_disjoint_windows(call):
        return None
    weight = call.args[1].value.numpy().transpose(1, 0, 2, 3)
    block_in = packer.block_of(call.args[0]) or choose_block(weight.shape[1], packer.lanes)
    block_out = choose_block(weight.shape[0], packer.lanes)
    data = packer.form(call.args[0], block_in)
    if block_out == PLAIN:
        return Form(PLAIN, _depth_to_space(packer, call, data, block_in))
    packed = constant(pack_weight(weight, block_in, block_out), call)
    hint = "conv2d_transpose_NCHWc"
    return Form(block_out, packer.builder.call_te(te_conv_transpose, data, packed, primfunc_name_hint=hint))


def _depth_to_space(packer: LayoutPacker, call: Call, data: Expr, block_in: int) -> Expr:
    """Compute a transposed convolution as a 1x1 convolution with an output for each element of the kernel."""
    weight = as_channels(call.args[1].value.numpy())
    block_out = choose_block(len(weight), packer.lanes) or min(len(weight), packer.lanes)
    packed = constant(pack_weight(weight, block_in, block_out), call)
    pixels = Window(static_shape(call.args[0])[2:], (1, 1), (0, 0, 0, 0), (1, 1))
    hint = "conv2d_NCHWc"
    made = packer.builder.call_te(lambda x, k: te_conv(x, k, pixels), data, packed, primfunc_name_hint=hint)
    return packer.builder.call_te(
        te_depth_to_space, packer.builder.emit(made), static_shape(call), primfunc_name_hint="spread"
    )


def _depthwise(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack a depthwise convolution if its input is packed, or permuted, which is packed in place of that.

    Otherwise packing costs more than it gains.
    """
    data = call.args[0]
    block = packer.block_of(data)
    if block == PLAIN and op_name(packer.values.get(data)) == "relax.permute_dims":
        block = choose_block(static_shape(data)[1], packer.lanes)
    if block == PLAIN:
        return None
    weight = pack_channels(call.args[1].value.numpy().transpose(1, 0, 2, 3), block)[0]
    return Form(block, _call_direct(packer, call, block, weight))


def _call_direct(packer: LayoutPacker, call: Call, block: int, weight: Array) -> Expr:
    """Call a direct convolution on an input packed with `block`. Weights with 4 axes are depthwise ones."""
    geometry = Window.of(call)
    depthwise = weight.ndim == 4
    compute = te_depthwise if depthwise else te_conv
    hint = ("depthwise_" if depthwise else "group_" if call.attrs.groups > 1 else "") + "conv2d_NCHWc"
    operands = packer.form(call.args[0], block), constant(weight, call)
    return packer.builder.call_te(lambda x, k: compute(x, k, geometry), *operands, primfunc_name_hint=hint)


def _elementwise(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack an elementwise operator if one of its tensor operands is packed. Its other arguments are numbers."""
    tensors = [item for item in call.args if isinstance(item.ty, relax.TensorType)]
    operands = packer.operands(tensors, call)
    if operands is None:
        return None
    block, packed = operands
    if op_name(call) in _RISKY and static_shape(call)[1] % block:
        return None
    rest = call.args[len(tensors) :]
    return Form(block, relax.Call(call.op, [*packed, *rest], call.attrs, call.ty_args))


def _windowed(make: Callable[..., Call], names: str) -> _Handler:
    """Return a handler that packs an operator on height and width.

    Args:
        make: Makes the operator, with a packed layout.
        names: The attributes to copy, separated by spaces.
    """

    def handler(packer: LayoutPacker, call: Call) -> Form | None:
        block = packer.block_of(call.args[0])
        if block == PLAIN or str(call.attrs.layout) != "NCHW":
            return None
        options: dict[str, Any] = {name: getattr(call.attrs, name) for name in names.split()}
        if "roi" in options:
            options["roi"] = [float(item) for item in options["roi"]]
        data = packer.form(call.args[0], block)
        return Form(block, make(data, *call.args[1:], layout=f"NCHW{block}c", **options))

    return handler


def _reduce(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack a mean, sum, maximum or minimum over exactly height and width."""
    block = packer.block_of(call.args[0])
    if block == PLAIN or not is_over_pixels(call):
        return None
    make = getattr(relax.op, op_name(call).removeprefix("relax."))
    packed = packer.emit(make(packer.form(call.args[0], block), [2, 3], True))
    if call.attrs.keepdims:
        return Form(block, packed)
    batch, channels = static_shape(call)
    if channels % block:
        return None
    return Form(PLAIN, relax.op.reshape(packed, (batch, channels)))


def _slice(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack a slice of height and width."""
    block = packer.block_of(call.args[0])
    if block == PLAIN or not all(int(axis.value) in (2, 3) for axis in call.args[1]):
        return None
    return Form(block, relax.Call(call.op, [packer.form(call.args[0], block), *call.args[1:]], call.attrs))


def _concat(packer: LayoutPacker, call: Call) -> Form | None:
    """Pack a concatenation of channels, if a block divides the channels of every operand."""
    join = Join.of(call, lambda expr: expr)
    if join is None:
        return None
    channels = [static_shape(item)[1] for item in join.images]
    block = choose_block(gcd(*channels), packer.lanes, exact=True)
    if block == PLAIN:
        return None
    fitting = all(packable(item, count) for item, count in zip(join.images, channels, strict=True))
    if not fitting or not any(packer.block_of(item) for item in join.images):
        return None
    return Form(block, relax.op.concat([packer.operand(item, block) for item in join.images], axis=1))


def _part(packer: LayoutPacker, item: Expr) -> Form | None:
    """Turn a part of channels that were split between chunks into a slice of the packed tensor."""
    part = Part.of_split(item, packer.values.get(item.tuple_value))
    block = packer.block_of(part.image) if part is not None else PLAIN
    if part is None or block == PLAIN or part.first % block or part.count % block:
        return None
    bounds = {"begin": [part.first // block], "end": [(part.first + part.count) // block]}
    return Form(block, relax.op.strided_slice(packer.form(part.image, block), axes=[1], **bounds))


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
    **{f"relax.{name}": _reduce for name in ("max", "mean", "min", "sum")},
    "relax.concat": _concat,
    "relax.strided_slice": _slice,
}
