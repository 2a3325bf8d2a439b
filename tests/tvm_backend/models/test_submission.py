"""Formats that take one set of shapes and no constants, and the precision of a model."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ModelError
from autotune.processes.messages import ImportRequest
from autotune.storage.formats import ShapeBinding
from autotune.tvm_backend.isa import available
from autotune.tvm_backend.models.sources import open_source
from autotune.tvm_backend.models.submission import chosen_precision


@pytest.fixture(params=["a PyTorch program", "a TensorFlow Lite model"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "model"
    if "PyTorch" in request.param:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/archive_format", "pt2")
    else:
        path.write_bytes(b"\x1c\0\0\0TFL3")
    return path, request.param


def asked(path: Path, shapes: int = 1, values: dict[str, Any] | None = None, **more: Any) -> ImportRequest:
    bindings = tuple(ShapeBinding(f"s{number}") for number in range(shapes))
    return ImportRequest(str(path), "llvm", 1, (0,), "locks", bindings, values or {}, True, None, **more)


def test_several_shapes_and_constants_are_for_onnx(model: tuple[Path, str]) -> None:
    path, what = model
    with pytest.raises(ModelError, match="model: only an ONNX model takes several shapes in one job"):
        open_source(asked(path, shapes=2))
    with pytest.raises(ModelError, match=f"model is {what}; --value is for ONNX models"):
        open_source(asked(path, values={"x": 1}))


def test_what_has_no_known_content_is_read_as_onnx(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"TFL3")
    with pytest.raises(ModelError, match="is not an ONNX file, or is cut short"):
        open_source(asked(tmp_path / "model.tflite"))


def test_a_context_is_refused_for_other_models(model: tuple[Path, str]) -> None:
    with pytest.raises(ModelError, match="model is no GGUF file; --context is for these"):
        open_source(asked(model[0], context=512))


@pytest.mark.parametrize(
    ("description", "precision"),
    [
        ({"kind": "llvm", "mcpu": "cooperlake"}, "bf16"),
        ({"kind": "llvm", "mcpu": "skylake", "mattr": ["+amx-tile", "+amx-bf16"]}, "bf16"),
        ({"kind": "llvm", "mcpu": "skylake", "mattr": ["+amx-tile"]}, "fp32"),
        ({"kind": "llvm", "mcpu": "icelake-server"}, "fp32"),
        ({"kind": "cuda", "arch": "sm_90"}, "fp32"),
        ({"kind": "simulated"}, "fp32"),
    ],
)
def test_auto_is_bf16_where_the_cpu_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, description: dict[str, Any], precision: str
) -> None:
    monkeypatch.setattr(available, "cpu_flags", lambda: frozenset({"amx_tile", "amx_bf16"}))
    assert chosen_precision("auto", description) == precision
    assert chosen_precision("fp16", description) == "fp16"


def test_auto_is_no_bf16_where_a_virtual_machine_hides_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "cpu_flags", lambda: frozenset({"avx2"}))
    assert chosen_precision("auto", {"kind": "llvm", "mcpu": "skylake", "mattr": ["+amx-tile", "+amx-bf16"]}) == "fp32"
