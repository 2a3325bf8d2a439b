"""What the operators of a model say of its inputs and outputs: which are indices, which probabilities."""

from __future__ import annotations

from autotune.tvm_backend.graph.tflite.flatbuffer import Flatbuffer, Operator

# Operators that hand values on as they are, in another shape or type.
_HANDED_ON = frozenset({"CAST", "EXPAND_DIMS", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"})
_PROBABILITIES = frozenset({"LOGISTIC", "SOFTMAX"})


def vocabularies(flatbuffer: Flatbuffer) -> dict[str, int]:
    """Return the number of rows of the smallest table that each input is an index into, by the name of the input."""
    makers = _makers(flatbuffer)
    found: dict[str, int] = {}
    for operator in flatbuffer.operators():
        if operator.name not in ("GATHER", "EMBEDDING_LOOKUP"):
            continue
        table, index = operator.inputs if operator.name == "GATHER" else reversed(operator.inputs)
        shape = flatbuffer.shape(table)
        if flatbuffer.is_constant(table) and shape:
            origin = flatbuffer.name(_origin(makers, index))
            rows = shape[_axis(operator) % len(shape)]
            found[origin] = min(rows, found.get(origin, rows))
    return found


def probabilities(flatbuffer: Flatbuffer) -> tuple[bool, ...]:
    """Return for each output whether it is the result of a sigmoid or a softmax."""
    makers = _makers(flatbuffer)
    made = (makers.get(_origin(makers, number)) for number in flatbuffer.outputs())
    return tuple(operator is not None and operator.name in _PROBABILITIES for operator in made)


def _makers(flatbuffer: Flatbuffer) -> dict[int, Operator]:
    return {number: operator for operator in flatbuffer.operators() for number in operator.outputs}


def _origin(makers: dict[int, Operator], number: int) -> int:
    """The tensor that another is a view or a copy of."""
    while number in makers and makers[number].name in _HANDED_ON:
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
