"""What the operators of a model say of its inputs and outputs: which are indices, which probabilities."""

from __future__ import annotations

from collections.abc import Collection

from autotune.tvm_backend.graph.tflite.flatbuffer import Flatbuffer, Operator

# Operators that hand values on as they are, in another shape or type, and those that hand on some of them.
_HANDED_ON = frozenset({"CAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE", "TRANSPOSE"})
_PICKED = frozenset({"SLICE", "STRIDED_SLICE"})
_PROBABILITIES = frozenset({"LOGISTIC", "SOFTMAX"})


def vocabularies(flatbuffer: Flatbuffer, *, parts: bool = True) -> dict[str, int]:
    """Return the number of rows of the smallest table that each input is an index into, by the name of the input.

    Args:
        flatbuffer: The model.
        parts: Whether an input counts if only some of its elements are indices into the table, such as one column.
    """
    makers, handed_on = _makers(flatbuffer), _HANDED_ON | _PICKED if parts else _HANDED_ON
    found: dict[str, int] = {}
    for operator in flatbuffer.operators():
        if operator.name not in ("GATHER", "EMBEDDING_LOOKUP"):
            continue
        table, index = operator.inputs if operator.name == "GATHER" else reversed(operator.inputs)
        shape, origin = flatbuffer.shape(table), _origin(makers, index, handed_on)
        if flatbuffer.is_constant(table) and shape and origin not in makers:
            name, rows = flatbuffer.name(origin), shape[_axis(operator) % len(shape)]
            found[name] = min(rows, found.get(name, rows))
    return found


def probabilities(flatbuffer: Flatbuffer) -> tuple[bool, ...]:
    """Return for each output whether it is the result of a sigmoid or a softmax."""
    makers = _makers(flatbuffer)
    made = (makers.get(_origin(makers, number, _HANDED_ON | _PICKED)) for number in flatbuffer.outputs())
    return tuple(operator is not None and operator.name in _PROBABILITIES for operator in made)


def _makers(flatbuffer: Flatbuffer) -> dict[int, Operator]:
    return {number: operator for operator in flatbuffer.operators() for number in operator.outputs}


def _origin(makers: dict[int, Operator], number: int, handed_on: Collection[str]) -> int:
    """The tensor that operators of these names have handed on."""
    while number in makers and makers[number].name in handed_on:
        number = makers[number].inputs[0]
    return number


def _axis(operator: Operator) -> int:
    import tflite

    table = operator.entry.BuiltinOptions()
    if operator.name != "GATHER" or table is None:
        return 0
    options = tflite.GatherOptions()
    options.Init(table.Bytes, table.Pos)
    return int(options.Axis())
