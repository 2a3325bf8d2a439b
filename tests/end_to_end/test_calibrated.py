"""A float32 network is quantised by samples, tuned, exported and verified, and says what that cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from .conftest import User


def test_a_calibrated_job_is_exported_with_the_model_that_others_can_run(
    user: User, models: Path, tmp_path: Path
) -> None:
    model = models / "mlp.onnx"
    (given,) = onnx.load(str(model)).graph.input
    shape = [size.dim_value for size in given.type.tensor_type.shape.dim]
    rows = np.random.default_rng(0).random((4 * shape[0], *shape[1:]), dtype="float32")
    np.savez(tmp_path / "samples.npz", **{given.name: rows})
    user.ok("submit", model, "--precision", "int8", "--calibrate", tmp_path / "samples.npz", "--trials", 2)
    user.ok("daemon", "run", "--drain")
    printed = user.run("export", "mlp", "--output", tmp_path / "lib", "--quick")
    assert printed.returncode == 0 and "against the model in int8" in printed.stdout + printed.stderr
    report = json.loads((tmp_path / "lib" / "report.json").read_text())
    kinds = {node.op_type for node in onnx.load(report["quantised_model"]).graph.node}
    assert report["quantisation"]["samples"] == 4 and "QuantizeLinear" in kinds
