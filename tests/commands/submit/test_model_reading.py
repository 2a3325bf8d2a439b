"""What `submit` refuses of a model and a target before TVM is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.submit.model_reading import read_model
from autotune.config import Config
from autotune.errors import BadInput
from autotune.options import TuningOptions


@pytest.mark.parametrize(
    ("precision", "target", "fault"),
    [
        ("fp16", "llvm", "--precision fp16 is for GPUs, whose tensor cores compute it; the target is llvm"),
        ("tf32", "llvm", "--precision tf32 is for GPUs, whose tensor cores compute it; the target is llvm"),
        ("fp16", "simulated", "--precision fp16 is for GPUs"),
        ("int4", "cuda", "precision is 'int4'; give fp32 or tf32 or fp16 or bf16 or int8 or auto"),
        ("int8", "cuda", "add --calibrate FILE.npz"),
        ("int8", "llvm", "add --calibrate FILE.npz"),
    ],
)
def test_a_precision_that_makes_no_sense_is_refused(tmp_path: Path, precision: Any, target: str, fault: str) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"never read")
    options = TuningOptions(target=target, precision=precision)
    with pytest.raises(BadInput, match=fault):
        read_model(model, options, Config(), None, lambda step: None)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (TuningOptions(calibrate="data.npz"), "--max-drop and --accuracy are for --precision int8"),
        (TuningOptions(max_drop=0.1), "--max-drop and --accuracy are for --precision int8"),
        (TuningOptions(precision="int8", calibrate="none.npz"), "cannot read none.npz: there is no such file"),
        (TuningOptions(precision="auto", calibrate="none.npz"), "cannot read none.npz: there is no such file"),
        (
            TuningOptions(precision="auto", max_drop=0.1),
            "--max-drop and --accuracy are for --precision int8",
        ),
    ],
)
def test_calibration_that_makes_no_sense_is_refused(tmp_path: Path, options: TuningOptions, fault: str) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"never read")
    with pytest.raises(BadInput, match=fault):
        read_model(model, options, Config(), None, lambda step: None)


def test_a_pipe_with_calibration_data_keeps_nobody_waiting(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"never read")
    os.mkfifo(tmp_path / "data.npz")
    options = TuningOptions(precision="int8", calibrate=str(tmp_path / "data.npz"))
    with pytest.raises(BadInput, match="cannot read .*data.npz: it is a pipe or a device, and no file"):
        read_model(model, options, Config(), None, lambda step: None)
