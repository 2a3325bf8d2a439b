"""Where an ONNX graph chooses: by which of several values is the largest, or on which side of a threshold one lies.

Behind a choice the smallest rounding may become another answer, which is as right. So a graph can be cut there: what
enters its choices can be made outputs of it, and can be given to it in place of what it computes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes
from autotune.tvm_backend.models.onnx.simplify import nodes_of
from autotune.tvm_backend.types import ModelProto, NodeProto

_CHOOSING = {  # the operators, and which of their inputs they choose by
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Ceil": (0,),
    "Floor": (0,),
    "Greater": (0, 1),
    "GreaterOrEqual": (0, 1),
    "Less": (0, 1),
    "LessOrEqual": (0, 1),
    "NonMaxSuppression": (0, 1),
    "Round": (0,),
    "TopK": (0,),
}
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})
_GIVEN = "given:"  # begins the name of an input that stands for a tensor


def choices_of(proto: ModelProto) -> dict[str, str]:
    """Return the float tensors that choices are made by, with the operator that chooses; in the order of the graph.

    A tensor that is an input, a constant or of unknown type is not among them, nor is one inside of a branch or a loop.
    """
    made = {name for node in proto.graph.node for name in node.output}
    types = _types(proto)
    return {
        name: node.op_type
        for node in proto.graph.node
        for name in _chosen_by(node)
        if name in made and types.get(name) in _FLOATS
    }


def _chosen_by(node: NodeProto) -> list[str]:
    return [node.input[place] for place in _CHOOSING.get(node.op_type, ()) if place < len(node.input)]


def _types(proto: ModelProto) -> dict[str, int]:
    inferred = infer_shapes(proto, data_prop=False)
    return {item.name: item.type.tensor_type.elem_type for item in (*inferred.value_info, *inferred.output)}


def with_outputs(proto: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return a copy that has these float tensors as outputs, too, after its own."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return copy


def given(proto: ModelProto, values: Mapping[str, npt.NDArray[Any]]) -> ModelProto:
    """Return a copy that goes on with these values wherever it uses the tensors, and puts out its own ones at the end.

    Args:
        values: Values of tensors that the graph computes, by name. They are the inputs `given_inputs` of the copy.
    """
    copy = with_outputs(proto, list(values))
    for node in nodes_of(copy):
        for place, name in enumerate(node.input):
            if name in values:
                node.input[place] = _GIVEN + name
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(
            _GIVEN + name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in values.items()
    )
    return copy


def given_inputs(values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs that `given` has added, by name."""
    return {_GIVEN + name: np.ascontiguousarray(value) for name, value in values.items()}
