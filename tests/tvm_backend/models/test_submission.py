"""Formats that take one set of shapes and no constants."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.models.submission import open_source


@pytest.fixture(params=["a PyTorch program", "a TensorFlow Lite model"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "model"
    if "PyTorch" in request.param:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/archive_format", "pt2")
    else:
        path.write_bytes(b"\x1c\0\0\0TFL3")
    return path, request.param


def test_several_shapes_and_constants_are_for_onnx(model: tuple[Path, str]) -> None:
    path, what = model
    with pytest.raises(ModelError, match="model: only an ONNX model takes several shapes in one job"):
        open_source(path, 2, {})
    with pytest.raises(ModelError, match=f"model is {what}; --value is for ONNX models"):
        open_source(path, 1, {"x": 1})


def test_what_has_no_known_content_is_read_as_onnx(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"TFL3")
    with pytest.raises(ModelError, match="is not an ONNX file, or is cut short"):
        open_source(tmp_path / "model.tflite", 1, {})
