"""A model of TensorFlow Lite as a Relax module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ModelError, one_line
from autotune.storage.formats import InputSpec
from autotune.tvm_backend.graph.model import Model
from autotune.tvm_backend.graph.shapes import OpenInput, resolve
from autotune.tvm_backend.graph.tflite.flatbuffer import Flatbuffer, as_model_error


def import_flatbuffer(flatbuffer: Flatbuffer, overrides: Mapping[str, InputSpec], dims: Mapping[str, int]) -> Model:
    """Import a model.

    Args:
        flatbuffer: The model.
        overrides: Shapes that the user gave, by the name of the input; the model must have them already.
        dims: Sizes that the user gave, by the name of the open dimension; there are none.

    Raises:
        ModelError: The file is damaged, quantised, or has an operator that TVM lacks; one line that says which.
    """
    path = flatbuffer.path
    with as_model_error(path, "is a damaged TensorFlow Lite model"):
        flatbuffer.check()
        free = flatbuffer.inputs()
        inputs = resolve(path, free, overrides, dims)
        for item, before in zip(inputs, free, strict=True):
            _check_shape(path, item, before)
        outputs = tuple(map(flatbuffer.name, flatbuffer.outputs()))
    with as_model_error(path, "cannot be imported"):
        return Model(_module(flatbuffer), inputs, outputs)


def check_runs(flatbuffer: Flatbuffer) -> None:
    """Check that LiteRT takes a model: without it nothing can be verified.

    Raises:
        ModelError: It does not.
    """
    with as_model_error(flatbuffer.path, "is refused by LiteRT"):
        from ai_edge_litert.interpreter import Interpreter

        Interpreter(model_content=flatbuffer.content).allocate_tensors()


def _module(flatbuffer: Flatbuffer) -> Any:
    import tvm
    from tvm.relax.frontend.tflite import from_tflite

    from autotune.tvm_backend.graph.constants import fold_constants
    from autotune.tvm_backend.graph.empty import drop_empty_parts
    from autotune.tvm_backend.graph.tflite.channels import put_channels_first
    from autotune.tvm_backend.graph.tflite.converter import Converter

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = from_tflite(flatbuffer.model, op_converter=Converter)
    except tvm.error.OpNotImplemented as error:
        names = one_line(str(error).rpartition(":")[2]).replace("'", "").strip()
        text = f"{flatbuffer.path} has operators that TVM's importer does not support: {names}"
        raise ModelError(text) from error
    module["main"] = module["main"].without_attr("params")  # the weights once more
    return put_channels_first(fold_constants(drop_empty_parts(module)))


def _check_shape(path: Path, item: InputSpec, before: OpenInput) -> None:
    if (item.shape, item.dtype) != (before.fixed, before.dtype):
        shown = "x".join(map(str, before.fixed or ())) or "scalar"
        raise ModelError(
            f"{path}: input {item.name!r} is {before.dtype} {shown} in the file; for another shape convert it again"
        )
