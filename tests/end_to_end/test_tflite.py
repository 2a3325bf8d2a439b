"""A model of TensorFlow Lite, from `submit` to a verified library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def test_a_model_of_tensorflow_lite_is_verified_and_timed_against_litert(
    network: Any, user: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    weights = network.constant(rng.random((16, 3, 3, 3), dtype=np.float32))
    options = {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 1}
    image = network.input("image:0", 1, 12, 12, 3)
    bias = network.constant(rng.random(16, dtype=np.float32))
    made = network.add("CONV_2D", image, weights, bias, shape=(1, 6, 6, 16), kind="Conv2DOptions", **options)
    model = network.write(tmp_path / "net", network.add("LOGISTIC", made, shape=(1, 6, 6, 16)))
    user.ok("submit", model, "--quiet")
    job = user.root / "jobs" / "0001-net"
    assert (job / "model.tflite").read_bytes() == model.read_bytes() and not (job / "model.onnx").exists()
    assert any(task["name"].startswith("conv2d_NCHWc") for task in json.loads((job / "spec.json").read_text())["tasks"])
    shown = user.ok("export", "net", "--output", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 0 <= report["largest_relative_error"] < 1e-4 and report["reference"] == "litert"
    assert set(report["latency"]) == {"tuned_ms", "litert_ms"}
    assert [(item["name"], item["shape"]) for item in report["inputs"]] == [("image:0", [1, 12, 12, 3])]
    assert "LiteRT" in shown
    (job / "model.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    done = user.run("export", "net", "--output", tmp_path / "again")
    assert done.returncode == 1 and "model.tflite is damaged" in done.stderr


def test_what_is_refused_is_one_line(network: Any, user: Any, tmp_path: Path) -> None:
    model = network.write(tmp_path / "net", network.add("Warp", network.input("x", 4), shape=(4,)))
    done = user.run("submit", model, "--quiet")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "net: operator Warp 'warp0' is not supported: it is no operator of TensorFlow Lite" in done.stderr
