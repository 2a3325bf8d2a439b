"""Whole networks, compiled for AArch64 without tuning and run by an emulator, stay within the limits of an export."""

from __future__ import annotations

from pathlib import Path

import make_models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from autotune.settings import ExportSettings
from tests.tvm_backend.isa.emulated import needs_tools, relative_error

pytestmark = [needs_tools, pytest.mark.slow]
NETWORKS = ("resnet18", "mobilenet_v2", "lstm")
_PIXELS = (3, 64, 64)
_ROUNDED = 1e-5  # floats in another order
_NEON = ("neon",)
_DOT = ("neon", "dotprod")
_ALL = ("neon", "dotprod", "i8mm", "bf16")


class _Drawn(CalibrationDataReader):
    """Two sets of inputs."""

    def __init__(self, model: Path) -> None:
        rng = np.random.default_rng(0)
        inputs = onnxruntime.InferenceSession(str(model)).get_inputs()
        self._left = [
            {item.name: rng.standard_normal(item.shape).astype(np.float32) for item in inputs} for _ in range(2)
        ]

    def get_next(self):
        return self._left.pop() if self._left else None


@pytest.fixture
def network(target, tmp_path, monkeypatch):
    """Writes a network on few pixels, and the same quantised."""
    monkeypatch.setattr(make_models, "IMAGE", _PIXELS)

    def write(name, *, quantised=False):
        path = tmp_path / f"{name}.onnx"
        onnx.save(make_models.build(name), path)
        result = tmp_path / f"{name}_int8.onnx"
        if not quantised:
            return path
        if name == "lstm":
            quantize_dynamic(path, result, weight_type=QuantType.QInt8)
            return result
        whole = tmp_path / "whole.onnx"
        quant_pre_process(path, whole, skip_symbolic_shape=True)
        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(whole, result, _Drawn(path), per_channel=True, **kinds)
        return result

    return write


@pytest.mark.parametrize("name", NETWORKS)
def test_in_float32(network, tmp_path, record_property, name):
    error = relative_error(network(name), tmp_path, _NEON)
    record_property("error", error)
    assert error < ExportSettings().tolerance


@pytest.mark.parametrize("name", NETWORKS)
def test_in_bfloat16(network, tmp_path, record_property, name):
    error = relative_error(network(name), tmp_path, _ALL, "bf16")
    record_property("error", error)
    assert ExportSettings().tolerance < error < ExportSettings().tolerance_bf16


@pytest.mark.parametrize("features", (_ALL, _DOT), ids=("I8MM", "DotProd"))
@pytest.mark.parametrize("name", NETWORKS)
def test_in_int8(network, tmp_path, record_property, name, features):
    error = relative_error(network(name, quantised=True), tmp_path, features)
    record_property("error", error)
    if name == "lstm":
        assert error < _ROUNDED
    else:
        assert error == 0, "convolutions in integers are the same bit for bit"
