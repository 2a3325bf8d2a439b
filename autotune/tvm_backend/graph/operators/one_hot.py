"""One-hot encodings. TVM's importer makes those of floats in float64, whatever the type of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.tvm_backend.graph.operators.nodes import Nodes, attributes_of

_INT64 = 7  # ONNX's number of the element type


def one_hot(node: Any, nodes: Nodes) -> list[str]:
    """Inputs: indices, of which negative ones count from the end, their number, and the values for off and on.

    Raises:
        ValueError: The number is not constant, or the shape of the indices is not known.
    """
    indices, depth, values = node.input
    count, shape = int(nodes.number(depth)), list(nodes.shape(indices))
    axis = int(attributes_of(node).get("axis", -1)) % (len(shape) + 1)
    column = nodes.reshape(nodes.cast(indices, _INT64), [*shape[:axis], 1, *shape[axis:]])
    from_end = nodes.op("Add", column, nodes.constant([count], np.int64))
    negative = nodes.op("Less", column, nodes.constant([0], np.int64))
    numbers = np.arange(count).reshape(-1, *[1] * (len(shape) - axis))
    hot = nodes.op("Equal", nodes.op("Where", negative, from_end, column), nodes.constant(numbers, np.int64))
    on, off = (nodes.slice(values, 0, at, at + 1) for at in (1, 0))
    return [nodes.op("Where", hot, on, off)]
