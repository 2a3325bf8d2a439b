"""Give convolutions, and the operators between them, a channel-blocked layout: about twice as fast on a CPU.

A tensor (N, C, H, W) that is packed with block b has shape (N, ceil(C / b), H, W, b). Channel c is in chunk c // b and
lane c % b. The last chunk may have padding lanes. They hold finite values, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import ClassVar

from tvm import relax

from autotune.network_plan.plan import NOTHING, Plan
from autotune.tvm_backend.expressions import is_tensor_constant, op_name, plain_convolution, static_shape, values_of
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
    te_conv,
    te_conv_transpose,
    te_depth_to_space,
    te_depthwise,
)
from autotune.tvm_backend.operators.pixel_tiles import padded_pixels, te_conv_pixels
from autotune.tvm_backend.operators.winograd import te_winograd, transform_weight
from autotune.tvm_backend.packing.block_packer import LayoutPacker, winograd_tile
from autotune.tvm_backend.packing.encodings import Forms, Result, in_blocks
from autotune.tvm_backend.packing.packed_graph import OPERATORS, Handler
from autotune.tvm_backend.types import Call, Expr, IRModule, TensorExpr

# TVM's number for an operator that is fused with the elementwise operators after it. TVM itself does not find this
# pattern in a program with several loop nests.
_FUSABLE = {"op_pattern": 4}


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
    return rewrite_and_clean(mod, lambda module: _Blocks(module, lanes, winograd, registers, plan))


def _conv2d(packer: LayoutPacker, call: Call, result: Result) -> Forms | None:
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
    chosen = choose_block(outputs // groups, packer.lanes, exact=exact)
    block_out = packer.block_out(result, chosen, outputs // groups, exact)
    if block_out == PLAIN or (exact and block_in == PLAIN):
        return None
    size = static_shape(call)[2:]
    registers = packer.registers
    pixels = (
        padded_pixels(size, outputs, block_out, registers) if registers and groups == 1 and block_in != PLAIN else 0
    )
    algorithm = packer.algorithm(result, call, block_in, pixels)
    weight = values_of(call.args[1])
    if tile := winograd_tile(algorithm):
        packed = transform_weight(weight, block_in, block_out, tile)
        hint = "winograd_conv2d_NCHWc"
        return in_blocks(block_out, _convolution(packer, call, block_in, packed, te_winograd, hint, _FUSABLE))
    packed = pack_weight(weight, block_in, block_out)
    if algorithm == "rows":
        compute = partial(te_conv_pixels, pixels=pixels)
        return in_blocks(block_out, _convolution(packer, call, block_in, packed, compute, "conv2d_NCHWc", _FUSABLE))
    return in_blocks(block_out, _direct(packer, call, block_in, packed))


def _conv2d_transpose(packer: LayoutPacker, call: Call, _result: Result) -> Forms | None:
    """Pack a transposed convolution. If it has too few outputs for a block, only its input is packed."""
    if not has_disjoint_windows(call):
        return None
    weight = values_of(call.args[1]).transpose(1, 0, 2, 3)
    block_in = packer.block_of(call.args[0]) or choose_block(weight.shape[1], packer.lanes)
    block_out = choose_block(weight.shape[0], packer.lanes)
    data = packer.block(call.args[0], block_in)
    if block_out == PLAIN:
        return in_blocks(PLAIN, _depth_to_space(packer, call, data, block_in))
    packed = constant(pack_weight(weight, block_in, block_out), call)
    hint = "conv2d_transpose_NCHWc"
    return in_blocks(block_out, packer.builder.call_te(te_conv_transpose, data, packed, primfunc_name_hint=hint))


def _depth_to_space(packer: LayoutPacker, call: Call, data: Expr, block_in: int) -> Expr:
    """Compute a transposed convolution as a 1x1 convolution with an output for each element of the kernel."""
    weight = as_channels(values_of(call.args[1]))
    block_out = choose_block(len(weight), packer.lanes) or min(len(weight), packer.lanes)
    packed = constant(pack_weight(weight, block_in, block_out), call)
    pixels = Window(static_shape(call.args[0])[2:], (1, 1), (0, 0, 0, 0), (1, 1))
    hint = "conv2d_NCHWc"
    made = packer.builder.call_te(lambda x, k: te_conv(x, k, pixels), data, packed, primfunc_name_hint=hint)
    return packer.builder.call_te(
        te_depth_to_space, packer.builder.emit(made), static_shape(call), primfunc_name_hint="spread"
    )


def _depthwise(packer: LayoutPacker, call: Call) -> Forms | None:
    """Pack a depthwise convolution if its input is packed, or permuted, which is packed in place of that.

    Otherwise packing costs more than it gains.
    """
    data = call.args[0]
    block = packer.block_of(data)
    if block == PLAIN and op_name(packer.values.get(data)) == "relax.permute_dims":
        block = choose_block(static_shape(data)[1], packer.lanes)
    if block == PLAIN:
        return None
    weight = pack_channels(values_of(call.args[1]).transpose(1, 0, 2, 3), block)[0]
    return in_blocks(block, _direct(packer, call, block, weight))


def _direct(packer: LayoutPacker, call: Call, block: int, weight: Array) -> Expr:
    """Call a direct convolution on an input packed with `block`. Weights with 4 axes are depthwise ones."""
    depthwise = weight.ndim == 4
    hint = ("depthwise_" if depthwise else "group_" if call.attrs.groups > 1 else "") + "conv2d_NCHWc"
    return _convolution(packer, call, block, weight, te_depthwise if depthwise else te_conv, hint)


def _convolution(
    packer: LayoutPacker,
    call: Call,
    block: int,
    weight: Array,
    compute: Callable[..., TensorExpr],
    hint: str,
    attrs: Mapping[str, int] | None = None,
) -> Expr:
    """Call a convolution on an input packed with `block`, by a tensor expression of data, weights and geometry."""
    operands = packer.block(call.args[0], block), constant(weight, call)
    return packer.builder.call_te(
        lambda x, k: compute(x, k, Window.of(call)), *operands, primfunc_name_hint=hint, primfunc_attrs=attrs
    )


def _dense(packer: LayoutPacker, call: Call, _result: Result) -> Forms | None:
    """Multiply an image that was flattened with a matrix whose rows lie as its blocks do: nothing is unpacked."""
    data, matrix = call.args
    flattened: Expr = packer.values.get(data)
    if op_name(flattened) != "relax.reshape" or not is_tensor_constant(matrix):
        return None
    image = flattened.args[0]
    block = packer.block_of(image)
    batch, *pixels = static_shape(image)
    if block == PLAIN or pixels[0] % block or static_shape(data) != (batch, prod(pixels)) or matrix.ty.ndim != 2:
        return None
    channels, height, width = pixels
    rows = values_of(matrix).reshape(channels // block, block, height, width, -1).transpose(0, 2, 3, 1, 4)
    flat = packer.emit(relax.op.reshape(packer.block(image, block), static_shape(data)))
    return in_blocks(PLAIN, relax.op.matmul(flat, constant(rows.reshape(prod(pixels), -1), call)))


class _Blocks(LayoutPacker):
    handlers: ClassVar[Mapping[str, Handler]] = {
        **OPERATORS,
        "relax.matmul": _dense,
        "relax.nn.conv2d": _conv2d,
        "relax.nn.conv2d_transpose": _conv2d_transpose,
    }
