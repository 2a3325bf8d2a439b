"""Inputs that always have the same value: constants of the graph, so that what follows from them is folded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import ModelError
from autotune.storage.formats import Constant


def freeze(path: Path, proto: Any, values: Mapping[str, Constant]) -> Any:
    """A graph in which these inputs are constants, and branches that they decide are taken.

    Raises:
        ModelError: There is no such input, or it has another number of elements.
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


def constant(path: Path, item: Any, value: Constant) -> npt.NDArray[Any]:
    """A value as an input of a graph wants it: in its type and shape."""
    import onnx

    tensor = item.type.tensor_type
    dims = tensor.shape.dim
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if isinstance(value, list):
        if len(dims) != 1 or (dims[0].HasField("dim_value") and dims[0].dim_value != len(value)):
            raise ModelError(f"{path}: input {item.name!r} does not take a list of {len(value)} numbers")
    elif any(dim.dim_value > 1 for dim in dims):
        raise ModelError(f"{path}: input {item.name!r} has more than one element, and --value gives one number")
    return shaped(value, len(dims), dtype)


def shaped(value: Constant, rank: int, dtype: Any) -> npt.NDArray[Any]:
    """A value as an array; one number has a dimension of one for each that the input has."""
    return np.array(value, dtype) if isinstance(value, list) else np.full((1,) * rank, value, dtype)
