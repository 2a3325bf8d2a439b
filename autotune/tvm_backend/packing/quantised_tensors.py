"""Quantised tensors: what is multiplied of them, what they are computed as, and how they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.tvm_backend.operators.element_types import LEVELS
from autotune.tvm_backend.packing.encodings import Result
from autotune.tvm_backend.packing.quant_params import QuantParams
from autotune.tvm_backend.types import Expr

_ALL = (0, LEVELS - 1)


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
class QuantisedResult(Result):
    """What is quantised after an operator: its quantisation parameters, and the least and the greatest of its bytes."""

    quant_params: QuantParams
    limits: tuple[int, int] = _ALL

    @property
    def has_limits(self) -> bool:
        """Whether activations leave some bytes out."""
        return self.limits != _ALL
