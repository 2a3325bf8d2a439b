"""An If that is decided while the model runs: both branches are computed, and one of the results is taken.

No branch has side effects in ONNX, so the result is the same. Which takes more time than one branch would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def take_decided(proto: Any) -> None:
    """Put the branch in the place of each If whose condition follows from constants alone."""
    written: list[Any] = []
    for index, node in enumerate(list(proto.graph.node)):
        chosen = _decided(proto, written, node.input[0]) if node.op_type == "If" else None
        if chosen is None:
            written.append(node)
            continue
        name = "then_branch" if chosen else "else_branch"
        (branch,) = (attribute.g for attribute in node.attribute if attribute.name == name)
        outputs = _inlined(branch, f"taken.{index}", proto.graph, written)
        written += [_same(new, old) for new, old in zip(outputs, node.output, strict=True)]
    again = any(node.op_type == "If" for node in written) and len(written) > len(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(written)
    if again:
        take_decided(proto)


def _decided(proto: Any, before: list[Any], condition: str) -> bool | None:
    """The value of a condition, if no input of the graph has a part in it."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    makers = {name: node for node in before for name in node.output}
    constants = {item.name: item for item in proto.graph.initializer}
    needed, used, waiting = [], [], [condition]
    while waiting:
        name = waiting.pop()
        if name in makers and makers[name] not in needed:
            needed.append(makers[name])
            waiting += [item for item in makers[name].input if item]
        elif name in constants:
            used.append(constants[name])
        elif name not in makers:
            return None
    nodes = [node for node in before if node in needed]
    output = onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, None)
    graph = onnx.helper.make_graph(nodes, "condition", [], [output], used)
    model = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    return bool(ReferenceEvaluator(model).run(None, {})[0])


def _same(new: str, old: str) -> Any:
    import onnx

    return onnx.helper.make_node("Identity", [new], [old], old)


def inline_branches(graph: Any, prefix: str) -> None:
    """Put the operators of all branches of a graph, of those inside branches too, into the graph itself."""
    import onnx

    written: list[Any] = []
    for index, node in enumerate(graph.node):
        if node.op_type != "If":
            written.append(node)
            continue
        outputs = []
        for attribute in sorted(node.attribute, key=lambda item: item.name, reverse=True):  # then, else
            branch = onnx.GraphProto()
            branch.CopyFrom(attribute.g)
            inline_branches(branch, f"{prefix}.{index}.{attribute.name}")
            outputs.append(_inlined(branch, f"{prefix}.{index}.{attribute.name}", graph, written))
        for name, then, other in zip(node.output, *outputs, strict=True):
            written.append(onnx.helper.make_node("Where", [node.input[0], then, other], [name], name))
    del graph.node[:]
    graph.node.extend(written)


def _inlined(branch: Any, prefix: str, graph: Any, written: list[Any]) -> list[str]:
    """Append a branch's operators to `written` and its weights to `graph`; returns the names of its outputs."""
    own = [*(item.name for item in branch.initializer), *(name for node in branch.node for name in node.output if name)]
    names = {name: f"{prefix}.{name}" for name in own}
    for item in branch.initializer:
        item.name = names[item.name]
    graph.initializer.extend(branch.initializer)
    for node in branch.node:
        rename(node, names)
        written.append(node)
    return [names.get(item.name, item.name) for item in branch.output]


def rename(node: Any, names: Mapping[str, str]) -> None:
    """Give an operator's values their new names, also where the graphs inside it read them."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for item in inner.node:
                rename(item, names)
            for output in inner.output:
                output.name = names.get(output.name, output.name)
