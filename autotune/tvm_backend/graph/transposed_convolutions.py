"""Compute transposed convolutions as convolutions; with strides their outputs lie between each other.

TVM computes a transposed convolution as a convolution of an image with zeros between its pixels: with a stride of 8,
seven in eight multiplications are by such a zero. Those pixels of the output that are at the same place modulo the
stride read the same taps of the kernel. So a convolution of the image as it is has an output for each such place, a
phase, and the phases are put side by side afterwards. Vocoders and detectors enlarge what they have so. Without
strides there is one phase: a convolution with the kernel turned round, which is packed as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import float_dtype, is_tensor_constant, op_name, static_shape, values_of
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.operators.convolution import has_disjoint_windows
from autotune.tvm_backend.types import Call, Expr, IRModule

_KINDS = {
    "relax.nn.conv1d_transpose": (("NCW", "IOW", "NCW"), relax.op.nn.conv1d),
    "relax.nn.conv2d_transpose": (("NCHW", "IOHW", "NCHW"), relax.op.nn.conv2d),
}


def split_phases(mod: IRModule) -> IRModule:
    """Rewrite `main` so that transposed convolutions are convolutions with an output for each phase.

    Args:
        mod: A module before LegalizeOps. The weights of convolutions are Relax constants.

    Returns:
        The rewritten module.
    """
    return rewrite_and_clean(mod, _PhaseSplitter)


@dataclass(frozen=True)
class _Axis:
    """A transposed convolution along an axis of the image."""

    stride: int  # the number of phases
    taps: int  # how many pixels of the input an output of a phase depends on
    padding: tuple[int, int]  # of the input, before and after
    begin: int  # which pixel of the phases side by side is the first of the output
    end: int  # the one after the last

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, before: int, output: int) -> _Axis:
        """The axis of an input of this size, whose output begins at pixel `before` of what the kernel reaches."""
        taps = -(-kernel // stride)
        first = before // stride
        steps = (before + output - 1) // stride - first + 1
        left = taps - 1 - first
        begin = before - first * stride
        return cls(stride, taps, (left, steps + taps - 1 - size - left), begin, begin + output)


class _PhaseSplitter(PlainRewriter):
    def replace(self, value: Expr) -> Expr | None:
        if not _is_transposed(value):
            return None
        axes = _axes(value)
        if any(size < 0 for axis in axes for size in axis.padding):
            return None
        phases = self._phases(value, axes)
        return phases if all(axis.stride == 1 for axis in axes) else self._together(self.emit(phases), value, axes)

    def _phases(self, call: Call, axes: list[_Axis]) -> Expr:
        _, convolution = _KINDS[op_name(call)]
        groups = int(call.attrs.groups)
        weights = _weights(values_of(call.args[1]), groups, axes)
        padding = [axis.padding[end] for end in (0, 1) for axis in axes]
        weight = relax.const(weights, str(call.args[1].ty.dtype))
        return convolution(self.leaf(call.args[0]), weight, padding=padding, groups=groups)

    def _together(self, phases: Expr, call: Call, axes: list[_Axis]) -> Expr:
        """The phases (N, groups, stride..., outputs, size...) as an image, without what is before and after it."""
        batch, channels, *_ = static_shape(call)
        groups = int(call.attrs.groups)
        sizes = static_shape(phases)[2:]
        strides = [axis.stride for axis in axes]
        rank = len(axes)
        apart = self.emit(relax.op.reshape(phases, (batch, groups, *strides, channels // groups, *sizes)))
        order = [0, 1, 2 + rank]
        for place in range(rank):
            order += [3 + rank + place, 2 + place]
        beside = self.emit(relax.op.permute_dims(apart, order))
        whole = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        image = relax.op.reshape(beside, (batch, channels, *whole))
        begin = [axis.begin for axis in axes]
        end = [axis.end for axis in axes]
        if not any(begin) and end == whole:
            return image
        return relax.op.strided_slice(self.emit(image), axes=list(range(2, 2 + rank)), begin=begin, end=end)


def _is_transposed(value: Expr) -> bool:
    """Whether a value is a transposed convolution that is computed so; separate windows have a kernel of their own."""
    kind = _KINDS.get(op_name(value))
    if kind is None or not is_tensor_constant(value.args[1]) or has_disjoint_windows(value):
        return False
    attrs = value.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    typed = all(float_dtype(item) and prod(static_shape(item)) > 0 for item in (*value.args, value))
    return typed and layouts == kind[0] and all(int(item) == 1 for item in attrs.dilation)


def _axes(call: Call) -> list[_Axis]:
    sizes = static_shape(call.args[0])[2:]
    kernels = static_shape(call.args[1])[2:]
    strides = [int(item) for item in call.attrs.strides]
    before = [int(item) for item in call.attrs.padding][: len(sizes)]
    outputs = static_shape(call)[2:]
    return [_Axis.of(*item) for item in zip(sizes, kernels, strides, before, outputs, strict=True)]


def _weights(weight: npt.NDArray[Any], groups: int, axes: list[_Axis]) -> npt.NDArray[Any]:
    """Weights (I, O / groups, kernel...) as those of the phases, (groups * strides * O / groups, I / groups, taps...).

    Tap m of phase r is element (taps - 1 - m) * stride + r of the kernel, or zero where the kernel has ended.
    """
    inputs, outputs, *kernel = weight.shape
    rank = len(axes)
    missing = [(0, axis.taps * axis.stride - size) for axis, size in zip(axes, kernel, strict=True)]
    filled = np.pad(weight, [(0, 0), (0, 0), *missing])
    split = [size for axis in axes for size in (axis.taps, axis.stride)]
    apart = filled.reshape(groups, inputs // groups, outputs, *split)
    taps = [3 + 2 * place for place in range(rank)]
    strides = [place + 1 for place in taps]
    ordered = np.flip(apart, tuple(taps)).transpose(0, *strides, 2, 1, *taps)
    channels = groups * outputs * prod(axis.stride for axis in axes)
    return np.ascontiguousarray(ordered.reshape(channels, inputs // groups, *(axis.taps for axis in axes)))
