"""Which outputs of a graph are probabilities: values of a function that is between 0 and 1."""

from __future__ import annotations

from typing import Any

_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_HANDED_ON = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def probabilities(proto: Any) -> tuple[bool, ...]:
    """Whether each output of a graph is the result of a sigmoid or a softmax."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    return tuple(_is_probability(makers, item.name) for item in proto.graph.output)


def _is_probability(makers: dict[str, Any], name: str) -> bool:
    while name in makers and makers[name].op_type in _HANDED_ON:
        name = makers[name].input[0]
    return name in makers and makers[name].op_type in _PROBABILITIES
