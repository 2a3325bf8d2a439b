"""Which inputs of a graph are indices into a table, and how many rows the table has."""

from __future__ import annotations

from typing import Any

# Operators that hand values on as they are, in another shape or type, and those that hand on some of them.
_HANDED_ON = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_PICKED = frozenset({"Gather", "Slice", "Split"})
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity", "Mul"})
_LOOKS_UP = frozenset({"Gather", "GatherElements", "GatherND"})


def vocabularies(proto: Any, *, parts: bool = True) -> dict[str, int]:
    """Return the number of rows of the smallest table that each input is an index into; nothing for other inputs.

    Args:
        parts: Whether an input counts if only some of its elements are indices into the table, such as one column.
    """
    import onnx

    graph = proto.graph
    inputs = {item.name for item in graph.input} - {item.name for item in graph.initializer}
    origin = {name: name for name in inputs}
    handed_on = _HANDED_ON | _PICKED if parts else _HANDED_ON
    sizes = {item.name: tuple(item.dims) for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors = [item.t for item in node.attribute if item.type == onnx.AttributeProto.TENSOR]
            sizes.update((node.output[0], tuple(item.dims)) for item in tensors)
    found: dict[str, int] = {}
    for node in graph.node:
        source = origin.get(node.input[0]) if node.input else None
        if source is not None and node.op_type in handed_on:
            origin.update((name, source) for name in node.output)
        elif node.input and node.input[0] in sizes and node.op_type in _SAME_SHAPE:
            sizes.update((name, sizes[node.input[0]]) for name in node.output)
        table = sizes.get(node.input[0]) if node.op_type in _LOOKS_UP else None
        index = origin.get(node.input[1]) if table else None
        if table and index is not None and (parts or node.op_type != "GatherND"):
            rows = min(table) if node.op_type == "GatherND" else table[_axis(node) % len(table)]
            found[index] = min(rows, found.get(index, rows))
    return found


def _axis(node: Any) -> int:
    return next((int(item.i) for item in node.attribute if item.name == "axis"), 0)
