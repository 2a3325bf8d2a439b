"""Compute what a quantised network multiplies in int8 on a GPU, with sums in int32, for its tensor cores.

A network that was quantised with QDQ operators says of each convolution and product: dequantise the inputs, compute in
floats, quantise the output. Here the convolution or product takes the integers, and its sums are scaled; what follows
stays as it is, and is fused to it. Tensor cores take signed bytes, so unsigned ones are moved by 128, and their zero
point with them. What a zero point adds to a sum depends on the weights alone, and is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from autotune.tvm_backend.expressions import bindings_of, op_name, static_shape
from autotune.tvm_backend.graph.permutations import sink_permutations
from autotune.tvm_backend.graph.rewrite import PlainRewriter, rewrite_and_clean
from autotune.tvm_backend.packing.quantised_tensors import QuantParams, ScaledConstant
from autotune.tvm_backend.types import Call, Expr, IRModule, Var

Array = npt.NDArray[Any]
_BYTE = "int8"
_SUMS = "int32"
_MIDDLE = 128
_NO_LAYOUT = ("NCHW", "OIHW")
_CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC", "out_dtype": _SUMS}


def gpu_integers(mod: IRModule) -> IRModule:
    """Rewrite `main` so that quantised convolutions and products compute in int8.

    Those whose weights are no constants of signed bytes, and convolutions in groups, stay in floats.

    Args:
        mod: A module as imported: dequantised constants are not folded yet.

    Returns:
        The rewritten module, or `mod` itself if it has nothing quantised.
    """
    names = {op_name(item.value) for item in bindings_of(mod["main"])}
    if "relax.dequantize" not in names:
        return mod
    return sink_permutations(rewrite_and_clean(mod, _Integers))  # its convolutions have channels last


@dataclass(frozen=True)
class _Bytes:
    """A tensor of signed bytes: number = (byte - zero) * scale."""

    tensor: Expr
    scale: np.float32
    zero: int


class _Integers(PlainRewriter):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._signed: dict[Var, Expr] = {}

    def replace(self, value: Expr) -> Expr | None:
        if op_name(value) == "relax.nn.conv2d":
            return self._convolution(value)
        return self._product(value) if op_name(value) == "relax.matmul" else None

    def _convolution(self, call: Call) -> Expr | None:
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        weight = self._weight(call.args[1])
        if weight is None or layouts != _NO_LAYOUT or int(attrs.groups) != 1 or weight.axis > 0:
            return None
        data = self._bytes(call.args[0])
        if data is None:
            return None
        image = self.emit(relax.op.permute_dims(data.tensor, [0, 2, 3, 1]))
        top, left, bottom, right = (int(item) for item in attrs.padding)
        padding = [top, left, bottom, right]
        if data.zero and any(padding):  # the border has the number 0, which is no byte of 0 then
            widths = [0, 0, top, bottom, left, right, 0, 0]
            image = self.emit(relax.op.nn.pad(image, widths, pad_value=float(data.zero)))
            padding = [0] * 4
        filters = relax.const(weight.integers.transpose(0, 2, 3, 1).astype(_BYTE))
        options = {**_CHANNELS_LAST, "padding": padding, "strides": attrs.strides, "dilation": attrs.dilation}
        sums = self.emit(relax.op.nn.conv2d(image, filters, **options))
        return relax.op.permute_dims(self._scaled(sums, data, weight, (1, 2, 3)), [0, 3, 1, 2])

    def _product(self, call: Call) -> Expr | None:
        weight = self._weight(call.args[1])
        if weight is None or weight.integers.ndim != 2 or weight.axis == 0:
            return None
        data = self._bytes(call.args[0])
        if data is None:
            return None
        matrix = relax.const(weight.integers.astype(_BYTE))
        sums = self.emit(relax.op.matmul(data.tensor, matrix, out_dtype=_SUMS))
        return self._scaled(sums, data, weight, (0,))

    def _scaled(self, sums: Expr, data: _Bytes, weight: ScaledConstant, summed: tuple[int, ...]) -> Expr:
        """Return the numbers that sums stand for, whose last axis is that of the weights which are not summed."""
        if data.zero:
            of_zero = data.zero * weight.integers.sum(axis=summed)
            sums = self.emit(relax.op.subtract(sums, relax.const(of_zero.astype(_SUMS))))
        numbers = self.emit(relax.op.astype(sums, "float32"))
        scale: Array = data.scale * weight.scale
        return self.emit(relax.op.multiply(numbers, relax.const(scale.astype("float32"))))

    def _weight(self, expr: Expr) -> ScaledConstant | None:
        """Return a constant of signed bytes, perhaps transposed; None for any other value."""
        value: Expr = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) == "relax.permute_dims":
            inner = self._weight(value.args[0])
            axes = value.attrs.axes
            count = inner.integers.ndim if inner else 0
            order = [int(item) for item in axes] if axes is not None else list(reversed(range(count)))
            return inner.transposed(order) if inner else None
        constant = ScaledConstant.of(value) if value is not None else None
        return constant if constant is not None and constant.fits() else None

    def _bytes(self, expr: Expr) -> _Bytes | None:
        """Return the bytes that a value was dequantised from, signed; None where it was not."""
        value: Expr = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if op_name(value) != "relax.dequantize" or not static_shape(value):
            return None
        params = QuantParams.of(value)
        if params is None or not isinstance(value.args[0], relax.Var):
            return None
        return _Bytes(self._signed_bytes(value.args[0], params), params.scale, params.zero - _MIDDLE)

    def _signed_bytes(self, var: Var, params: QuantParams) -> Expr:
        if params.signed:
            return self.leaf(var)
        if var not in self._signed:
            self._signed[var] = self._moved(var, params)
        return self._signed[var]

    def _moved(self, var: Var, params: QuantParams) -> Expr:
        """Return unsigned bytes less 128. What quantises them quantises to signed ones."""
        value: Expr = self.values.get(var)
        if op_name(value) == "relax.quantize" and QuantParams.of(value) == params:
            zero = relax.const(np.array(params.zero - _MIDDLE, _BYTE))
            return self.emit(relax.op.quantize(self.leaf(value.args[0]), value.args[1], zero, out_dtype=_BYTE))
        wide = self.emit(relax.op.astype(self.leaf(var), "int16"))
        moved = self.emit(relax.op.subtract(wide, relax.const(_MIDDLE, "int16")))
        return self.emit(relax.op.astype(moved, _BYTE))
