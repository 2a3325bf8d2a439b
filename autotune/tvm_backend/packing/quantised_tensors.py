"""Quantised tensors: their forms, what is multiplied of them, and how they were computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.tvm_backend.packing.quant_params import QuantParams
from autotune.tvm_backend.types import Expr


@dataclass
class Forms:
    """The forms of a quantised tensor that there are so far.

    Attributes:
        outer: As the graph has it.
        row_major: Unsigned bytes in the same layout.
        nhwc_blocked: Unsigned bytes of an image with the channels innermost, in chunks.
    """

    outer: Expr = None
    row_major: Expr = None
    nhwc_blocked: Expr = None


@dataclass(frozen=True)
class ByteOperand:
    """Bytes that are multiplied.

    Attributes:
        var: Their variable.
        zero_point: An unsigned byte (1,).
        scale: A float (1,); None if they are multiplied as integers.
        quant_params: What they mean, where it is always the same.
    """

    var: Expr
    zero_point: Expr
    scale: Expr = None
    quant_params: QuantParams | None = None


@dataclass(frozen=True)
class RequantisedLayer:
    """How a layer was computed, so that an addition after it can become a part of it.

    Attributes:
        call: Computes it, from what is added and the name of the kernel.
        quant_params: Those of its result.
    """

    call: Callable[..., Expr]
    quant_params: QuantParams


@dataclass(frozen=True)
class Quantised:
    """A float expression that is quantised: the operator, and the quantisation parameters and limits of its result."""

    value: Expr
    quant_params: QuantParams
    limits: tuple[int, int]
    shape: tuple[int, ...] = field(default=())
