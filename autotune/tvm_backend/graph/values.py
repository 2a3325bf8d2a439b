"""Inputs that always have the same value: constants of the graph, so that what follows from them is folded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError


def freeze(path: Path, proto: Any, values: Mapping[str, float]) -> Any:
    """A graph in which these inputs are constants, and branches that they decide are taken.

    Raises:
        ModelError: There is no such input, or it has more than one element.
    """
    import onnx

    from autotune.tvm_backend.graph.operators.branches import take_decided

    if not values:
        return proto
    frozen = onnx.ModelProto()
    frozen.CopyFrom(proto)
    inputs = {item.name: item for item in frozen.graph.input}
    for name, value in values.items():
        if name not in inputs:
            raise ModelError(f"{path} has no input {name!r}; its inputs: {', '.join(inputs)}")
        frozen.graph.initializer.append(onnx.numpy_helper.from_array(constant(path, inputs[name], value), name))
        frozen.graph.input.remove(inputs[name])
    frozen.ir_version = max(frozen.ir_version, 4)
    take_decided(frozen)
    return frozen


def constant(path: Path, item: Any, value: float) -> npt.NDArray[Any]:
    """A value as an input of a graph wants it: its type, and a dimension of one for each that it has."""
    import onnx

    tensor = item.type.tensor_type
    if any(dim.dim_value > 1 for dim in tensor.shape.dim):
        raise ModelError(f"{path}: input {item.name!r} has more than one element; --value is for one number")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.full((1,) * len(tensor.shape.dim), value, dtype)
