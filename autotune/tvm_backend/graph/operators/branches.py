"""An If that is decided while the model runs: both branches are computed, and one of the results is taken.

No branch has side effects in ONNX, so the result is the same. Which takes more time than one branch would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def inline_branches(graph: Any, prefix: str) -> bool:
    """Put the operators of all branches of a graph, of those inside branches too, into the graph itself.

    Returns:
        Whether there were any.
    """
    import onnx

    written: list[Any] = []
    found = False
    for index, node in enumerate(graph.node):
        if node.op_type != "If":
            written.append(node)
            continue
        found = True
        outputs = []
        for attribute in sorted(node.attribute, key=lambda item: item.name, reverse=True):  # then, else
            branch = onnx.GraphProto()
            branch.CopyFrom(attribute.g)
            outputs.append(_inlined(branch, f"{prefix}.{index}.{attribute.name}", graph, written))
        for name, then, other in zip(node.output, *outputs, strict=True):
            written.append(onnx.helper.make_node("Where", [node.input[0], then, other], [name], name))
    del graph.node[:]
    graph.node.extend(written)
    return found


def _inlined(branch: Any, prefix: str, graph: Any, written: list[Any]) -> list[str]:
    """Append a branch's operators to `written` and its weights to `graph`; returns the names of its outputs."""
    inline_branches(branch, prefix)
    own = [*(item.name for item in branch.initializer), *(name for node in branch.node for name in node.output if name)]
    names = {name: f"{prefix}.{name}" for name in own}
    for item in branch.initializer:
        item.name = names[item.name]
    graph.initializer.extend(branch.initializer)
    for node in branch.node:
        _rename(node, names)
        written.append(node)
    return [names.get(item.name, item.name) for item in branch.output]


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Give an operator's values their new names, also where the graphs inside it read them."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for item in inner.node:
                _rename(item, names)
            for output in inner.output:
                output.name = names.get(output.name, output.name)
