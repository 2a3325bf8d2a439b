"""Put the graphs inside operators in their place: branches of an If, and functions that define an operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx.reference import ReferenceEvaluator

from autotune.tvm_backend.models.onnx.operators.nodes import Nodes
from autotune.tvm_backend.types import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
)

# Of these the importer has none; of those that follow it has another operator, or only the first output.
_DEFINED = frozenset(
    {
        "BlackmanWindow",
        "CausalConvWithState",
        "Celu",
        "CenterCropPad",
        "FlexAttention",
        "HammingWindow",
        "HannWindow",
        "LinearAttention",
        "NegativeLogLikelihoodLoss",
        "RotaryEmbedding",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
        "Swish",
    }
)
_ANOTHER = frozenset({"Attention"})
_ONE_OUTPUT = frozenset({"LayerNormalization"})
_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.preview")


def fold_constant_ifs(proto: ModelProto) -> None:
    """Put the branch in the place of each If whose condition follows from constants alone."""
    written: list[NodeProto] = []
    for index, node in enumerate(list(proto.graph.node)):
        chosen = _decided(proto, written, node.input[0]) if node.op_type == "If" else None
        if chosen is None:
            written.append(node)
            continue
        name = "then_branch" if chosen else "else_branch"
        (branch,) = (attribute.g for attribute in node.attribute if attribute.name == name)
        outputs = _inlined(branch, f"taken.{index}", proto.graph, written)
        pairs = zip(outputs, node.output, strict=True)
        written += [onnx.helper.make_node("Identity", [new], [old], old) for new, old in pairs]
    again = any(node.op_type == "If" for node in written) and len(written) > len(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(written)
    if again:
        fold_constant_ifs(proto)


def _decided(proto: ModelProto, before: list[NodeProto], condition: str) -> bool | None:
    """The value of a condition, if no input of the graph has a part in it."""
    return known_truth(condition, before, {item.name: item for item in proto.graph.initializer}, proto.opset_import)


def known_truth(
    condition: str,
    before: Sequence[NodeProto],
    constants: Mapping[str, TensorProto],
    opsets: Iterable[OperatorSetIdProto],
) -> bool | None:
    """The value of a condition, if it follows from constants alone.

    Args:
        condition: Its name.
        before: The operators that may have a part in it.
        constants: The constants by name.
        opsets: The versions of the operators.
    """
    makers = {name: node for node in before for name in node.output}
    needed: list[NodeProto] = []
    used: list[TensorProto] = []
    waiting = [condition]
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
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    return bool(ReferenceEvaluator(model).run(None, {})[0])


def inline_branches(graph: GraphProto, prefix: str) -> None:
    """Put the operators of all branches of a graph, of those inside branches too, into the graph itself.

    Both branches are computed, and one of the results is taken. No branch has side effects in ONNX, so the result is
    the same, but it takes more time than one branch would.
    """
    written: list[NodeProto] = []
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


def _inlined(branch: GraphProto, prefix: str, graph: GraphProto, written: list[NodeProto]) -> list[str]:
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


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Give an operator's values their new names, also where the graphs inside it read them."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for item in inner.node:
                rename(item, names)
            for output in inner.output:
                output.name = names.get(output.name, output.name)


def is_defined_by_function(node: NodeProto) -> bool:
    """Whether an operator is one that has to be replaced by its definition."""
    if node.domain not in _OWN_DOMAINS:
        return False
    several = node.op_type in _ONE_OUTPUT and any(node.output[1:])
    return several or node.op_type in _DEFINED | _ANOTHER


def expand(node: NodeProto, nodes: Nodes) -> list[str]:
    """Write the body of an operator's function; returns the names of its outputs.

    Raises:
        ValueError: This version of ONNX has no function for it, or none for inputs of unknown type.
    """
    function = _function(node, nodes)
    given = dict(zip(function.input, node.input, strict=False))
    names = {name: given.get(name, "") for name in function.input}
    for inner in function.node:
        names.update({name: f"{nodes.prefix}.{name}" for name in inner.output if name})
    attributes = _attributes(node, function)
    for inner in function.node:
        rename(inner, names)
        _refer(inner, attributes)
        nodes.written.append(inner)
    return [names.get(name, "") for name in function.output]


def _function(node: NodeProto, nodes: Nodes) -> FunctionProto:
    version = 1 if node.domain == "ai.onnx.preview" else nodes.opset
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        chosen = _latest(schema.context_dependent_function_opset_versions, nodes.opset)
        types = [_type(nodes, name) for name in node.input]
        body = schema.get_context_dependent_function_with_opset_version(chosen, node.SerializeToString(), types)
    elif schema.has_function:
        body = schema.get_function_with_opset_version(_latest(schema.function_opset_versions, nodes.opset))
    else:
        body = b""
    if not body:
        raise ValueError(f"ONNX {onnx.__version__} does not say how it is computed")
    function.ParseFromString(body)
    return function


def _latest(versions: Iterable[int], opset: int) -> int:
    return int(max((version for version in versions if version <= opset), default=min(versions)))


def _type(nodes: Nodes, name: str) -> bytes:
    value = nodes.values.get(name)
    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    return bytes(onnx.helper.make_tensor_type_proto(value.dtype, value.shape).SerializeToString())


def _attributes(node: NodeProto, function: FunctionProto) -> dict[str, AttributeProto]:
    """The values of a function's attributes: the operator's own, or by default."""
    schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    attributes = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.type}
    attributes.update({item.name: item for item in function.attribute_proto})
    attributes.update({item.name: item for item in node.attribute})
    return attributes


def _refer(inner: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    """Put values in the place of references to the function's attributes; without a value an attribute is left out."""
    kept = []
    for item in inner.attribute:
        if not item.ref_attr_name:
            kept.append(item)
        elif item.ref_attr_name in attributes:
            value = type(item)()
            value.CopyFrom(attributes[item.ref_attr_name])
            value.name = item.name
            kept.append(value)
    del inner.attribute[:]
    inner.attribute.extend(kept)
