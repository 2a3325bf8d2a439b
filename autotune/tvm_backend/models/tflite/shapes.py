"""Shapes that a model of TensorFlow Lite computes as it runs, made constants of it.

Its inputs have fixed shapes, so that what follows from shapes is the same in each run. LiteRT computes it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer, LiteRtSession, Operator, packed, unpacked
from autotune.tvm_backend.types import ModelT

_INTEGERS = ("int32", "int64")
# The shapes of what these make follow from values, not from shapes alone.
_BY_VALUE = frozenset({"CALL", "CALL_ONCE", "IF", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"})
_BY_VALUE |= {"DENSIFY", "HASHTABLE_LOOKUP", "SEGMENT_SUM", "SPARSE_TO_DENSE", "UNIQUE", "WHERE", "WHILE"}


def with_constant_shapes(flatbuffer: Flatbuffer) -> Flatbuffer:
    """Return a model whose shapes are constants, and whose tensors all have the shapes that they have in a run.

    Returns:
        The new model. The model itself, if nothing asks for a shape, or if shapes may follow from values.
    """
    operators = flatbuffer.operators()
    kinds = {item.name for item in operators}
    if "SHAPE" not in kinds or kinds & _BY_VALUE:
        return flatbuffer
    session = LiteRtSession(flatbuffer.content, keep=True)
    session.run([np.zeros(item["shape"], item["dtype"]) for item in session.inputs])
    constants = _from_shapes(flatbuffer, operators, session)
    return Flatbuffer(flatbuffer.path, _rewritten(flatbuffer, operators, session, constants))


def _from_shapes(flatbuffer: Flatbuffer, operators: Sequence[Operator], session: LiteRtSession) -> set[int]:
    """The tensors of integers that follow from shapes and constants."""
    following: set[int] = set()
    computed = {*flatbuffer.input_numbers(), *(number for item in operators for number in item.outputs)}
    for item in operators:
        wanted = computed.intersection(item.inputs)
        follows = item.name == "SHAPE" or (wanted and wanted <= following)
        if follows and all(session.value(number).dtype.name in _INTEGERS for number in item.outputs):
            following.update(item.outputs)
    return following


def _rewritten(
    flatbuffer: Flatbuffer, operators: Sequence[Operator], session: LiteRtSession, constants: set[int]
) -> bytes:
    model = unpacked(flatbuffer.content)
    main = model.subgraphs[0]
    kept = [not constants.issuperset(item.outputs) for item in operators]
    for item in (item for item, stays in zip(operators, kept, strict=True) if stays):
        for number in item.outputs:
            main.tensors[number].shape = list(session.value(number).shape)
    for number in constants:
        _make_constant(model, main.tensors[number], session.value(number))
    main.operators = [entry for entry, stays in zip(main.operators, kept, strict=True) if stays]
    return packed(model)


def _make_constant(model: ModelT, tensor: Any, value: npt.NDArray[Any]) -> None:
    buffer = type(model.buffers[0])()
    buffer.data = np.frombuffer(value.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.shape = list(value.shape)
    tensor.buffer = len(model.buffers) - 1
