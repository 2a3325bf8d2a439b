"""Transposed convolutions whose windows do not overlap: what U-Nets and text detectors enlarge images with.

TVM computes a transposed convolution as a convolution of an image with zeros between its pixels. With strides of two,
three in four multiplications are by such a zero. If the strides are as large as the kernel, every output element
depends on one pixel of the input, and the sum over its channels is all there is to compute.
"""

from __future__ import annotations

from typing import Any

from tvm import te

from autotune.tvm_backend.graph.convolution import Array
from autotune.tvm_backend.graph.rewrite import Expr, float_dtype, is_tensor_constant, op_name, static_shape


def separate_windows(value: Expr) -> bool:
    """Return whether a value is an NCHW transposed convolution with constant IOHW weights and separate windows."""
    if op_name(value) != "relax.nn.conv2d_transpose" or not is_tensor_constant(value.args[1]):
        return False
    attrs, kernel = value.attrs, static_shape(value.args[1])[2:]
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    dtypes = {float_dtype(item) for item in (*value.args, value)}
    known = len(dtypes) == 1 and None not in dtypes and all(map(static_shape, (*value.args, value)))
    padded = any(map(int, (*attrs.padding, *attrs.output_padding)))
    whole = all(int(item) == 1 for item in (*attrs.dilation, attrs.groups))
    strides = tuple(int(item) for item in attrs.strides)
    return known and layouts == ("NCHW", "IOHW", "NCHW") and strides == kernel and whole and not padded


def te_conv_transpose(data: Any, kernel: Any) -> Any:
    """Express a transposed convolution of packed tensors.

    Args:
        data: The input of shape (N, IC, H, W, bi); (N, I, H, W) if it is plain.
        kernel: The weights of shape (OC, IC, KH, KW, bi, bo); (OC, I, KH, KW, bo) for a plain input.

    Returns:
        The output of shape (N, OC, H * KH, W * KW, bo).
    """
    down, right = int(kernel.shape[2]), int(kernel.shape[3])
    chunk, *lane = axes = [te.reduce_axis((0, size)) for size in (kernel.shape[1], *kernel.shape[4:-1])]

    def element(n: Any, oc: Any, h: Any, w: Any, o: Any) -> Any:
        at, tap = (n, chunk, h // down, w // right, *lane), (oc, chunk, h % down, w % right, *lane, o)
        return te.sum(data[at] * kernel[tap], axis=axes)

    shape = (data.shape[0], kernel.shape[0], data.shape[2] * down, data.shape[3] * right, kernel.shape[-1])
    return te.compute(shape, element, name="conv2d_transpose_NCHWc")


def as_channels(weight: Array) -> Array:
    """Return weights (I, O, KH, KW) as those of a 1x1 convolution, (O * KH * KW, I, 1, 1)."""
    return weight.reshape(weight.shape[0], -1, 1, 1).transpose(1, 0, 2, 3)


def te_spread(data: Any, shape: tuple[int, ...]) -> Any:
    """Express the output of a transposed convolution by that of the 1x1 convolution of `as_channels`.

    Args:
        data: What the 1x1 convolution computes, of shape (N, OC, H, W, bo).
        shape: That of the output, (N, O, H * KH, W * KW).
    """
    down, right, block = shape[2] // int(data.shape[2]), shape[3] // int(data.shape[3]), int(data.shape[4])

    def element(n: Any, o: Any, h: Any, w: Any) -> Any:
        channel = (o * down + h % down) * right + w % right
        return data[n, channel // block, h // down, w // right, channel % block]

    return te.compute(shape, element, name="spread")
