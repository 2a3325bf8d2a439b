"""Convert a graph of old operators to the version that TVM's importer is written for.

What `Slice`, `Resize` and others take as attributes, or as empty constants, in old versions are inputs, or left out, in
newer ones. The converted graph is kept only where ONNX Runtime computes the same of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.operators.nodes import opset_of
from autotune.tvm_backend.models.onnx.simplify import Array, open_session
from autotune.tvm_backend.models.onnx.snapshot import is_large
from autotune.tvm_backend.types import ModelProto

_WANTED = 13  # opset: axes and sizes are inputs, and any of Resize's may be left out
_SEED = 2026
_SIZES = 3  # the input of Resize that leaves no use for the one before it


def convert(fixed: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    """A graph of at least opset 13 that computes the same, with what it leaves unread left out.

    Args:
        fixed: The graph, as `fix_shapes` returns it.
        inputs: Its inputs.

    Returns:
        The graph, or `fixed` itself where ONNX cannot convert it or ONNX Runtime computes something else of the result.
    """
    newer = _newer(fixed, inputs)
    if opset_of(newer) < _WANTED:
        return fixed
    resized = [node for node in newer.graph.node if node.op_type == "Resize" and _has_sizes(node.input)]
    for node in resized:
        node.input[2] = ""
        if not any(
            item.name == "coordinate_transformation_mode" and item.s == b"tf_crop_and_resize" for item in node.attribute
        ):
            node.input[1] = ""
    return newer


def _has_sizes(names: Sequence[str]) -> bool:
    return len(names) > _SIZES and bool(names[_SIZES])


def _newer(fixed: ModelProto, inputs: Sequence[InputSpec]) -> ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(fixed)
    if opset_of(fixed) >= _WANTED or is_large(fixed):
        return copy
    try:
        newer = onnx.version_converter.convert_version(copy, _WANTED)
        values = _values(inputs)
        same = zip(_run(fixed, inputs, values), _run(newer, inputs, values), strict=True)
        return newer if all(np.allclose(ours, theirs, 1e-4, 1e-5, equal_nan=True) for ours, theirs in same) else fixed
    except Exception:  # the converter and ONNX Runtime raise whatever they stumble over
        return fixed


def _values(inputs: Sequence[InputSpec]) -> dict[str, Array]:
    """Random floats, and zeros for the rest, which are valid indices."""
    generator = np.random.default_rng(_SEED)
    return {
        item.name: generator.standard_normal(item.shape).astype(item.dtype)
        if np.issubdtype(np.dtype(item.dtype), np.floating)
        else np.zeros(item.shape, item.dtype)
        for item in inputs
    }


def _run(proto: ModelProto, inputs: Sequence[InputSpec], values: dict[str, Array]) -> list[Array]:
    return list(open_session(proto, inputs).run(None, values))
