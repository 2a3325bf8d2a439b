"""What the integers of quantised tensors mean: of operands, of results, and of constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.expressions import is_tensor_constant, op_name, values_of
from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.packing.encodings import Result
from autotune.tvm_backend.types import Call, Expr

Array = npt.NDArray[Any]
_ALL = (0, LEVELS - 1)  # the limits of bytes
_LOWEST = -128
_MIDDLE = 128  # what is added to a signed byte to make it an unsigned one


@dataclass(frozen=True)
class QuantParams:
    """How bytes stand for numbers: number = (byte - zero) * scale.

    Kernels see unsigned bytes only. Signed ones are moved by 128, and their zero point with them.

    Attributes:
        scale: The step.
        zero: The unsigned byte that stands for 0.
        signed: Whether the graph has signed bytes.
    """

    scale: np.float32
    zero: int
    signed: bool

    @classmethod
    def of(cls, call: Call) -> QuantParams | None:
        """Return those of a call of quantize or dequantize; None if it has several, or not of 8 bits."""
        dtype = str((call if op_name(call) == "relax.quantize" else call.args[0]).ty.dtype)
        _, scale, zero = call.args
        if dtype not in ("uint8", "int8") or not (is_tensor_constant(scale) and is_tensor_constant(zero)):
            return None
        scales = values_of(scale)
        zeros = values_of(zero)
        if scales.size != 1 or zeros.size != 1 or scales.dtype != np.float32:
            return None
        signed = dtype == "int8"
        return cls(scales.reshape(-1)[0], int(zeros.reshape(-1)[0]) + (_MIDDLE if signed else 0), signed)

    def numbers(self) -> Array:
        """The numbers that the bytes 0 to 255 stand for, as float32."""
        steps: Array = (np.arange(LEVELS) - self.zero).astype(np.float32)
        return np.multiply(steps, self.scale)

    def bytes_of(self, numbers: Array) -> Array:
        """Quantise numbers as ONNX's QuantizeLinear does, to unsigned bytes."""
        steps: Array = np.rint(numbers.astype(np.float32) / self.scale) + np.float32(self.zero)
        clipped: Array = np.clip(steps, 0, LEVELS - 1).astype(np.uint8)
        return clipped

    def line_to(self, other: QuantParams) -> tuple[np.float32, np.float32] | None:
        """Return factor and offset with which round(byte * factor + offset) is the byte by other parameters.

        It is less the zero point and not clipped. None if rounding takes any byte elsewhere than quantising does.
        """
        if self == other:
            return np.float32(1), np.float32(-other.zero)
        factor = self.scale / other.scale
        offset = -np.float32(self.zero) * factor
        steps = np.rint(np.arange(LEVELS, dtype=np.float32) * factor + offset) + np.float32(other.zero)
        same = np.array_equal(np.clip(steps, 0, LEVELS - 1).astype(np.uint8), other.bytes_of(self.numbers()))
        return (factor, offset) if same else None


@dataclass(frozen=True)
class ComputedParams:
    """What the graph computes of a dynamic quantisation.

    Attributes:
        scale: A float (1,).
        zero: An unsigned byte (1,).
        zero_point: The variable that the graph has for it.
    """

    scale: Expr
    zero: Expr
    zero_point: Expr


@dataclass
class QuantisedTensor:
    """What is known so far of the bytes of a variable.

    Attributes:
        quant_params: What they mean; None of a variable that nothing has taken for quantised bytes.
        computed: Their scale and zero point, if these are not always the same.
        layer: What computes a requantised layer, from what is added to it and the name of the kernel.
        table: Of a function of one quantised value: that value, and a byte for each of its bytes.
    """

    quant_params: QuantParams | None = None
    computed: ComputedParams | None = None
    layer: Callable[..., Expr] | None = None
    table: tuple[Expr, Array] | None = None


@dataclass(frozen=True)
class ByteOperand:
    """Bytes that are multiplied.

    Attributes:
        zero_point: An unsigned byte (1,).
        scale: A float (1,); None if they are multiplied as integers.
        quant_params: What they mean, where it is always the same.
    """

    var: Expr
    zero_point: Expr
    scale: Expr = None
    quant_params: QuantParams | None = None


@dataclass(frozen=True)
class QuantisedResult(Result):
    """What is quantised after an operator: its quantisation parameters, and the least and the greatest of its bytes."""

    quant_params: QuantParams
    limits: tuple[int, int] = _ALL

    @property
    def has_limits(self) -> bool:
        """Whether activations leave some bytes out."""
        return self.limits != _ALL


@dataclass(frozen=True)
class ScaledConstant:
    """A constant tensor in integers.

    Attributes:
        integers: Less their zero points, as int64.
        scale: Of the tensor, float32 (1,), or of each slice of an axis.
        axis: That axis; -1 if there is one scale only.
    """

    integers: Array
    scale: Array
    axis: int

    @classmethod
    def of(cls, call: Call) -> ScaledConstant | None:
        """Return the constant that a call of dequantize makes; None if it makes another value."""
        if op_name(call) != "relax.dequantize" or not all(map(is_tensor_constant, call.args)):
            return None
        integers, scale, zero = (values_of(item) for item in call.args)
        axis = int(call.attrs.axis) % max(integers.ndim, 1)
        if scale.size > 1 or zero.size > 1:
            along = [1] * integers.ndim
            along[axis] = -1
            zero = zero.reshape(along) if zero.size > 1 else zero.reshape(())
        else:
            zero = zero.reshape(())
            axis = -1
        return cls(integers.astype(np.int64) - zero.astype(np.int64), scale.reshape(-1).astype(np.float32), axis)

    def transposed(self, axes: Sequence[int]) -> ScaledConstant:
        """Return the constant with its axes in another order."""
        axis = self.axis if self.axis < 0 else axes.index(self.axis)
        return ScaledConstant(self.integers.transpose(axes), self.scale, axis)

    def numbers(self) -> Array:
        """The numbers, as float32."""
        along = [1] * self.integers.ndim
        if self.axis >= 0:
            along[self.axis] = -1
        numbers: Array = self.integers.astype(np.float32) * self.scale.reshape(along if self.axis >= 0 else ())
        return numbers

    def fits(self) -> bool:
        """Return whether the integers are signed bytes."""
        return bool((self.integers >= _LOWEST).all() and (self.integers < _MIDDLE).all())
