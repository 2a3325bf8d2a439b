"""Models for CUDA are tuned and exported, and what their kernels compute is compared: on a GPU that is a CPU.

Nothing of the times means anything here. `tests/cuda_stand_in/on_cpu` says what this shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import make_models
import onnx
import pytest

from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

from ..cuda_stand_in import StandIn
from ..cuda_stand_in.on_cpu import image
from .conftest import MadeOnce, User, make_user

pytestmark = [
    pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}"),
    pytest.mark.slow,
]

SETTINGS = """\
[measure]
warmup = 0
repeats = 1
min_repeat_ms = 1
gpu_spin_up_ms = 0
timeout_s = 60.0
"""


def convolution(net: Any) -> Any:
    return net.relu(net.conv_bn(net.input("input", 8, 14, 14), 16, 3))


def normalisations(net: Any) -> Any:
    return net.op("Softmax", net.layer_norm(net.input("input", 24, 48)), axis=-1)


def product(net: Any) -> Any:
    return net.matmul(net.input("input", 64, 64), net.input("other", 64, 64))


def depthwise(net: Any) -> Any:
    return net.relu6(net.conv_bn(net.input("input", 16, 14, 14), 16, 3, groups=16))


def transformer(net: Any) -> Any:
    x = net.input("input", 16, 32)
    x = net.layer_norm(net.add(make_models._attention(net, x, heads=2), x))
    return net.layer_norm(net.add(net.dense(net.gelu(net.dense(x, 64)), 32), x))


TRIALS = 3
# The networks, and what of a relative error is allowed.
NETWORKS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "mlp": (make_models.mlp, 1e-4),
    "tiny_cnn": (make_models.tiny_cnn, 1e-4),
    "convolution": (convolution, 1e-4),
    "normalisations": (normalisations, 1e-4),
    "product": (product, 2e-2),
    "depthwise": (depthwise, 1e-4),
    "transformer": (transformer, 1e-4),
}


@pytest.fixture(scope="session")
def tuned(made_once: MadeOnce, computing_gpu: StandIn) -> User:
    """A workspace in which each network was tuned with a few trials."""

    def make(folder: Path) -> None:
        user = make_user(folder)
        user.settle(SETTINGS)
        for name, (network, tolerance) in NETWORKS.items():
            net = make_models.Net(name, seed=0, batch=1)
            onnx.save(net.finish(network(net)), str(folder / f"{name}.onnx"))
            precision = ["--precision", "fp16"] if tolerance > 1e-3 else []
            user.ok("submit", folder / f"{name}.onnx", "--target", "cuda", "--trials", TRIALS, *precision)
        user.ok("daemon", "run", "--drain")

    with patch.dict(os.environ, computing_gpu.environment()):
        return User(made_once("tuned_for_cuda", make))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_tuned_and_its_library_computes_what_onnx_runtime_does(tuned, computing_gpu, name, tmp_path):
    with patch.dict(os.environ, computing_gpu.environment()):
        tuned.ok("export", name, "--output", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert 0 <= report["largest_relative_error"] <= NETWORKS[name][1]


def test_no_candidate_was_wrong_or_died(tuned):
    logs = tuned.root.glob("logs/tuning/*/*.jsonl")
    records = [record for log in logs for record in RecordLog(log, *FORMAT).read()]
    assert len(records) >= len(NETWORKS) * TRIALS
    assert [record["failure"] for record in records if record.get("failure")] == []
