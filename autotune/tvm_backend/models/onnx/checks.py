"""What is checked of a graph before it is simplified, imported and tuned: one line for what could not end well."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from autotune.errors import ModelError, OperatorRefused, Refusal
from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.operators.nodes import node_name, opset_of
from autotune.tvm_backend.models.onnx.shape_inference import infer_shapes, without_values
from autotune.tvm_backend.models.onnx.simplify import fix_shapes, open_session, reason
from autotune.tvm_backend.types import GraphProto, ModelProto, NodeProto, ValueInfoProto

_NO_NETWORKS = {  # what the names of operators begin with, and what serves them
    "TreeEnsemble": "lleaves, treelite and ONNX Runtime run ensembles of trees fast",
    "SVM": "ONNX Runtime runs support vector machines fast",
}
_MIN_RANK = 2  # of what is no list of sizes or scales
_MAX_ELEMENTS = 1 << 32  # of one tensor: 16 GiB in float32


def check_kind(path: Path, proto: ModelProto) -> None:
    """Check that a graph is a network.

    Raises:
        OperatorRefused: It is an ensemble of trees or a support vector machine; one line that names what serves those.
    """
    for node in proto.graph.node:
        served = next((by for kind, by in _NO_NETWORKS.items() if node.op_type.startswith(kind)), "")
        if served:
            why = "it is no network, and has nothing to tune"
            raise OperatorRefused.of(Refusal(node.op_type, node_name(node), why, served, opset_of(proto), "")).in_file(
                path
            )


def check_inputs(path: Path, proto: ModelProto, given: Collection[str]) -> None:
    """Check the inputs of a graph as the file has them; `given` are those whose shape the user gave.

    Raises:
        ModelError: There is none, two have one name, or one has a dimension of 0 that makes an output empty.
    """
    constants = {item.name for item in proto.graph.initializer}
    inputs = [item for item in proto.graph.input if item.name not in constants]
    if not inputs:
        raise ModelError(f"{path} has no inputs, so there is nothing to tune; export it with one")
    for name, count in Counter(item.name for item in inputs).items():
        if count > 1:
            raise ModelError(f"{path} has {count} inputs of the name {name!r}; give each a name of its own")
    empty = [item.name for item in inputs if item.name not in given and _is_empty(item)]
    if empty and any(map(_is_empty, _inferred(proto).output)):
        advice = f"export it with that dimension open or above 0, or give --input {empty[0]}=SHAPE"
        raise ModelError(f"{path}: input {empty[0]!r} has a dimension of 0, and so has an output; {advice}")


def _is_empty(item: ValueInfoProto) -> bool:
    """Whether a value has no elements, for all that is known."""
    return any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in item.type.tensor_type.shape.dim)


def check_sizes(path: Path, proto: ModelProto, inputs: Sequence[InputSpec]) -> None:
    """Check the tensors of a graph for inputs of these shapes.

    Raises:
        ModelError: One has more than 2^32 elements, or a Range never ends.
    """
    for item in inputs:
        _check_elements(f"{path}: input {item.name!r}", item.shape)
    fixed = fix_shapes(without_values(proto), inputs)
    numbers = dict(_numbers(fixed))
    for node in fixed.graph.node:
        if node.op_type == "Range" and numbers.get(node.input[2]) == 0:
            raise ModelError(f"{path}: {_about(node)} has a step of 0; give it another and export the model again")
    shapes = _shapes(fixed)
    for node in fixed.graph.node:
        for name in node.output:
            _check_elements(f"{path}: the result of {_about(node)}", shapes.get(name, ()))


def check_runs(path: Path, proto: ModelProto, inputs: Sequence[InputSpec]) -> None:
    """Check that ONNX Runtime takes a graph: without it nothing can be verified.

    Raises:
        ModelError: It does not; one line with its reason.
    """
    _session(path, proto, inputs, runs=False)


def check_computes(path: Path, proto: ModelProto, inputs: Sequence[InputSpec], refused: ModelError) -> None:
    """Check that a graph which was refused for one operator is not one that ONNX Runtime cannot run at all.

    It is run on zeros, where these are values and not sizes, axes or indices; and not at all if it was refused for a
    loop, which may have no end.

    Args:
        refused: Why it was refused.

    Raises:
        ModelError: ONNX Runtime cannot run it for another reason; one line with that.
    """
    try:
        session = _session(path, proto, inputs)
    except ModelError as error:
        if isinstance(refused, OperatorRefused) and refused.refusal and refused.refusal.operator in str(error):
            return
        raise
    is_loop = isinstance(refused, OperatorRefused) and refused.refusal and refused.refusal.operator == "Loop"
    if is_loop or any(np.dtype(item.dtype).kind != "f" or len(item.shape) < _MIN_RANK for item in inputs):
        return
    try:
        session.run(None, {item.name: np.zeros(item.shape, item.dtype) for item in inputs})
    except Exception as error:  # ONNX Runtime's exceptions have no common class but this one
        shapes = ", ".join(f"{item.name}={'x'.join(map(str, item.shape))}" for item in inputs)
        line = f"{path}: ONNX Runtime cannot run the model with inputs of these shapes ({shapes}): {reason(error)}"
        raise ModelError(f"{line}; give others with --input, or export the model again") from error


def _session(
    path: Path, proto: ModelProto, inputs: Sequence[InputSpec], *, runs: bool = True
) -> onnxruntime.InferenceSession:
    try:
        return open_session(fix_shapes(proto, inputs), inputs, runs=runs)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _check_elements(what: str, shape: Sequence[int]) -> None:
    if math.prod(shape) > _MAX_ELEMENTS:
        shown = "x".join(map(str, shape))
        raise ModelError(f"{what} is {shown}, which is more than 2^32 elements; give the model smaller inputs")


def _about(node: NodeProto) -> str:
    return f"operator {node.op_type} {node.name or next(iter(node.output), '')!r}"


def _numbers(proto: ModelProto) -> Iterator[tuple[str, float]]:
    """The constants of one element, by name. One without its data is for those who come after to refuse."""
    tensors = [(item.name, item) for item in proto.graph.initializer]
    for node in proto.graph.node:
        if node.op_type == "Constant":
            tensors += [(node.output[0], item.t) for item in node.attribute if item.name == "value"]
    for name, tensor in tensors:
        if math.prod(tensor.dims) == 1:
            with contextlib.suppress(ValueError):
                yield name, float(onnx.numpy_helper.to_array(tensor).item())


def _shapes(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes that inference finds. A graph that it stumbles over is for those who come after to refuse."""
    graph = _inferred(proto)
    items = (*graph.value_info, *graph.output)
    return {item.name: tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim) for item in items}


def _inferred(proto: ModelProto) -> GraphProto:
    """The graph with the shapes that inference finds; without any where it stumbles."""
    try:
        return infer_shapes(proto)
    except Exception:  # whatever a malformed graph makes it raise
        return onnx.GraphProto()
