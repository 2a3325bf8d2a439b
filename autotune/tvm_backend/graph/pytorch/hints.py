"""What the operators of an exported program say of its inputs and outputs: which are indices, which probabilities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from autotune.tvm_backend.graph.pytorch.checked import output_names

# Operators that hand values on as they are, in another shape or type, and those that hand on some of them.
_HANDED_ON = frozenset(
    {"alias", "clone", "contiguous", "detach", "detach_", "expand", "flatten", "permute", "reshape", "squeeze", "to"}
    | {"transpose", "unsqueeze", "view", "_to_copy"}
)
_PICKED = frozenset({"select", "slice"})
_PROBABILITIES = frozenset({"_softmax", "hardsigmoid", "sigmoid", "softmax"})


def vocabularies(program: Mapping[str, Any], *, parts: bool = True) -> dict[str, int]:
    """Return the number of rows of the smallest table that each value is an index into, by the name of the input.

    Args:
        parts: Whether an input counts if only some of its elements are indices into the table, such as one column.
    """
    makers, handed_on = _makers(program), _HANDED_ON | _PICKED if parts else _HANDED_ON
    found: dict[str, int] = {}
    for node in program["graph_module"]["graph"]["nodes"]:
        if _operator(node) == "embedding":
            table, index = (item["arg"]["as_tensor"]["name"] for item in node["inputs"][:2])
            rows = int(program["graph_module"]["graph"]["tensor_values"][table]["sizes"][0]["as_int"])
            origin = _origin(makers, index, handed_on)
            found[origin] = min(rows, found.get(origin, rows))
    return found


def probabilities(program: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return for each output whether it is the result of a sigmoid or a softmax."""
    makers = _makers(program)
    made = (makers.get(_origin(makers, name, _HANDED_ON | _PICKED)) for name in output_names(program))
    return tuple(node is not None and _operator(node) in _PROBABILITIES for node in made)


def _makers(program: Mapping[str, Any]) -> dict[str, Any]:
    nodes = program["graph_module"]["graph"]["nodes"]
    return {item["as_tensor"]["name"]: node for node in nodes for item in node["outputs"] if "as_tensor" in item}


def _operator(node: Mapping[str, Any]) -> str:
    return str(node["target"]).removeprefix("torch.ops.aten.").partition(".")[0]


def _origin(makers: Mapping[str, Any], name: str, handed_on: Collection[str]) -> str:
    """The value that operators of these names have handed on."""
    while name in makers and _operator(makers[name]) in handed_on:
        name = makers[name]["inputs"][0]["arg"]["as_tensor"]["name"]
    return name
