"""Operators that ONNX itself defines by a function of others: the function's body takes their place."""

from __future__ import annotations

from typing import Any

from autotune.tvm_backend.graph.operators.branches import rename
from autotune.tvm_backend.graph.operators.nodes import Nodes

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


def is_defined_by_function(node: Any) -> bool:
    """Whether an operator is one that has to be replaced by its definition."""
    if node.domain not in _OWN_DOMAINS:
        return False
    several = node.op_type in _ONE_OUTPUT and any(node.output[1:])
    return several or node.op_type in _DEFINED | _ANOTHER


def expand(node: Any, nodes: Nodes) -> list[str]:
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


def _function(node: Any, nodes: Nodes) -> Any:
    import onnx

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


def _latest(versions: Any, opset: int) -> int:
    return max((int(version) for version in versions if version <= opset), default=min(versions))


def _type(nodes: Nodes, name: str) -> bytes:
    import onnx

    known = nodes.values.get(name)
    if known is None:
        return bytes(onnx.TypeProto().SerializeToString())
    return bytes(onnx.helper.make_tensor_type_proto(known.dtype, known.shape).SerializeToString())


def _attributes(node: Any, function: Any) -> dict[str, Any]:
    """The values of a function's attributes: the operator's own, or by default."""
    import onnx

    schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    found = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.type}
    found.update({item.name: item for item in function.attribute_proto})
    found.update({item.name: item for item in node.attribute})
    return found


def _refer(inner: Any, attributes: dict[str, Any]) -> None:
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
