"""The import of a TensorFlow Lite model: from what is in its file to a Relax module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.models.model import Model, OpenInput, as_model_error, resolve
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer
from autotune.tvm_backend.models.tflite.shapes import with_constant_shapes


def import_flatbuffer(flatbuffer: Flatbuffer, overrides: Mapping[str, InputSpec], dims: Mapping[str, int]) -> Model:
    """Import a model.

    Args:
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
        from autotune.tvm_backend.models.tflite.convert import convert  # here, for it loads the package tflite

        return Model(convert(path, with_constant_shapes(flatbuffer).model), inputs, outputs)


def _check_shape(path: Path, item: InputSpec, before: OpenInput) -> None:
    if (item.shape, item.dtype) != (before.fixed, before.dtype):
        shown = "x".join(map(str, before.fixed or ())) or "scalar"
        raise ModelError(
            f"{path}: input {item.name!r} is {before.dtype} {shown} in the file; for another shape convert it again"
        )
