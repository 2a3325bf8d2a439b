"""Compute convolutions over signals as those over images of height one, for which there are layouts and schedules."""

from __future__ import annotations

import numpy as np
from tvm import relax

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, plain_convolution, static_shape, values_of
from autotune.tvm_backend.graph.reshape import ELEMENTWISE
from autotune.tvm_backend.graph.rewrite import Rewriter, rewrite_and_clean
from autotune.tvm_backend.types import Expr, IRModule, Var


def signals_as_images(mod: IRModule) -> IRModule:
    """Rewrite `main` so that (N, C, W) is (N, C, 1, W) in convolutions and in the elementwise operators after them.

    Args:
        mod: A module before LegalizeOps. The weights of convolutions are Relax constants.

    Returns:
        The rewritten module.
    """
    return rewrite_and_clean(mod, _Signals)


class _Signals(Rewriter):
    """Keeps for an old variable that is a signal the image of it, and for others, and where it is read, itself."""

    local = ("_images", "_plain")

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._images: dict[Var, Expr] = {}
        self._plain: dict[Var, Expr] = {}

    def visit(self, var: Var, value: Expr) -> None:
        image = self._convolution(value)
        if image is None:
            image = self._elementwise(value)
        if image is None:
            self._plain[var] = self.builder.emit(self.rebuild(value), var.name)
        else:
            self._images[var] = self.builder.emit(image, var.name)

    def plain(self, var: Var) -> Expr:
        if var in self._images and var not in self._plain:
            self._plain[var] = self.builder.emit(relax.op.reshape(self._images[var], static_shape(var)))
        return self._plain.get(var, var)

    def bind(self, var: Var, expr: Expr) -> None:
        self._images.pop(var, None)
        self._plain[var] = expr

    def _convolution(self, value: Expr) -> Expr | None:
        if not plain_convolution(value, "relax.nn.conv1d", "W"):
            return None
        data, weights = value.args
        attrs = value.attrs
        left, right = (int(size) for size in attrs.padding)
        return relax.op.nn.conv2d(
            self._image(data),
            relax.const(np.expand_dims(values_of(weights), 2), str(weights.ty.dtype)),
            strides=(1, int(attrs.strides[0])),
            padding=(0, left, 0, right),
            dilation=(1, int(attrs.dilation[0])),
            groups=int(attrs.groups),
        )

    def _elementwise(self, value: Expr) -> Expr | None:
        """An elementwise operator of which an operand is an image already."""
        if op_name(value) not in ELEMENTWISE or not any(item in self._images for item in value.args if _is_var(item)):
            return None
        tensors = [item for item in value.args if isinstance(item.ty, relax.TensorType)]
        if not all(is_tensor_constant(item) or _is_signal(item) for item in tensors):
            return None
        args = [_constant_image(item) if is_tensor_constant(item) else self._image(item) for item in tensors]
        return relax.Call(value.op, [*args, *value.args[len(tensors) :]], value.attrs, value.ty_args)

    def _image(self, signal: Expr) -> Expr:
        if _is_var(signal) and signal in self._images:
            return self._images[signal]
        batch, channels, width = static_shape(signal)
        return self.builder.emit(relax.op.reshape(self.leaf(signal), (batch, channels, 1, width)))


def _is_var(expr: Expr) -> bool:
    return isinstance(expr, relax.Var)


def _is_signal(expr: Expr) -> bool:
    return _is_var(expr) and len(static_shape(expr)) == 3


def _constant_image(constant: Expr) -> Expr:
    """A constant that is broadcast to a signal as one that is broadcast to its image."""
    value = values_of(constant)
    wide = np.expand_dims(value, -2) if value.ndim > 1 else value
    return relax.const(wide, str(constant.ty.dtype))
