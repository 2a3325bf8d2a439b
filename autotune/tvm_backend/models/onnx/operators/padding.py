"""The padding of convolutions that asks for an output of the size of the input, in numbers.

TVM's importer pads the input in an operator of its own. It copies the tensor, and no layout passes through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.tvm_backend.passes.rewrite import static_shape
from autotune.tvm_backend.types import Expr

_BEFORE_FIRST = {b"SAME_UPPER": False, b"SAME_LOWER": True}  # whether an odd element goes before the input


def with_numbers(inputs: Sequence[Expr], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a convolution with `pads` in place of `auto_pad`, where the shapes are known.

    Args:
        inputs: Of the convolution.
        attributes: As the file has them; texts are bytes.
    """
    data, weights = (static_shape(item)[2:] for item in inputs[:2])
    mode = attributes.get("auto_pad")
    if mode not in _BEFORE_FIRST or not data:
        return dict(attributes)
    kernel = attributes.get("kernel_shape") or weights
    strides, dilations = (attributes.get(name) or [1] * len(data) for name in ("strides", "dilations"))
    totals = [
        max((-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        for size, window, stride, dilation in zip(data, kernel, strides, dilations, strict=True)
    ]
    before = [-(-total // 2) if _BEFORE_FIRST[mode] else total // 2 for total in totals]
    after = [total - own for total, own in zip(totals, before, strict=True)]
    rest = {name: value for name, value in attributes.items() if name != "auto_pad"}
    return {**rest, "pads": [*before, *after]}
