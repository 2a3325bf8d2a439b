"""Fold what is constant in a graph whose operators or types are too new for ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LARGEST = 1 << 16  # elements of a result that is kept as a constant
_OF_SHAPES = frozenset({"Shape", "Size"})
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def fold(proto: Any) -> Any:
    """A graph that computes the same, with each operator on constants, or on shapes alone, replaced by its result."""
    import onnx

    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    while _fold_once(folded):
        pass
    return folded


def _fold_once(proto: Any) -> bool:
    """Fold what shape inference shows to be constant now; returns whether there was any, which may show more."""
    import onnx

    constants = {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
    shapes = _shapes(proto)
    kept, before = [], len(constants)
    for node in proto.graph.node:
        results = _results(node, constants, shapes, proto)
        if results is None:
            kept.append(node)
            continue
        constants.update(results)
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in results.items())
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return len(constants) > before


def _shapes(proto: Any) -> dict[str, tuple[int, ...]]:
    import onnx

    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found = {}
    for item in (*graph.input, *graph.value_info, *graph.output):
        tensor = item.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            found[item.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return found


def _results(
    node: Any, constants: dict[str, Array], shapes: dict[str, tuple[int, ...]], proto: Any
) -> dict[str, Array] | None:
    """What an operator computes, by the name of the output, if it is the same every time and not large."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.input if name]
    if node.op_type in _OF_SHAPES and names[0] in shapes:
        inputs = {names[0]: np.broadcast_to(np.float32(0), shapes[names[0]])}
    elif all(name in constants for name in names) and node.op_type not in _RANDOM:
        inputs = {name: constants[name] for name in names}
    else:
        return None
    if any(item.HasField("g") or item.graphs for item in node.attribute):
        return None
    try:
        versions = {item.domain: item.version for item in proto.opset_import}
        values = ReferenceEvaluator(node, opsets=versions).run(None, inputs)
    except Exception:  # the evaluator lacks operators and types, and raises whatever a malformed one makes it raise
        return None
    if any(not isinstance(value, np.ndarray | np.generic) or np.size(value) > _LARGEST for value in values):
        return None
    return {name: np.asarray(value) for name, value in zip(node.output, values, strict=True) if name}
