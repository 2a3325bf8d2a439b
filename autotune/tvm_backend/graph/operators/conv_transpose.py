"""Transposed convolutions that name the size of their output. TVM's importer ignores it."""

from __future__ import annotations

from typing import Any

from autotune.tvm_backend.graph.operators.nodes import Nodes, attributes_of


def names_its_size(node: Any) -> bool:
    """Whether an operator is a transposed convolution that says how large its output is."""
    return node.op_type == "ConvTranspose" and any(item.name == "output_shape" for item in node.attribute)


def conv_transpose(node: Any, nodes: Nodes) -> list[str]:
    """Write a transposed convolution with the padding that gives its output the size which it names.

    Raises:
        ValueError: No padding does: the output is to be larger than what the windows cover.
    """
    attributes = attributes_of(node)
    upper = attributes.pop("auto_pad", "NOTSET") == "SAME_UPPER"
    given, kernel = nodes.shape(node.input[0])[2:], nodes.shape(node.input[1])[2:]
    rank = len(given)
    wanted = attributes.pop("output_shape")
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    more = attributes.get("output_padding") or [0] * rank
    before, after = [], []
    for axis in range(rank):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (given[axis] - 1) + more[axis] + window - wanted[axis]
        if total < 0:
            raise ValueError(f"an output of {wanted[axis]} is larger than what its windows cover")
        before.append(total // 2 if upper else total - total // 2)
        after.append(total - before[-1])
    return [nodes.op("ConvTranspose", *node.input, **{**attributes, "pads": [*before, *after]})]
