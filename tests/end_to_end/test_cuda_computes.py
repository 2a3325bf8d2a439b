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
import numpy as np
import onnx
import pytest
from onnx import compose

from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

from ..cuda_stand_in import StandIn
from ..cuda_stand_in.on_cpu import image
from .conftest import MadeOnce, User, make_user

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}"),
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


def dense(net: Any) -> Any:
    return net.gelu(net.dense(net.input("input", 32, 64), 48))


def depthwise(net: Any) -> Any:
    return net.relu6(net.conv_bn(net.input("input", 16, 14, 14), 16, 3, groups=16))


def transformer(net: Any) -> Any:
    x = net.input("input", 16, 32)
    x = net.layer_norm(net.add(make_models._attention(net, x, heads=2), x))
    return net.layer_norm(net.add(net.dense(net.gelu(net.dense(x, 64)), 32), x))


def attention(net: Any) -> Any:
    """Three heads with a mask, in one kernel on tensor cores."""
    x = net.input("input", 20, 48)
    query, key, value = (net.reshape(net.dense(x, 48), 20, 3, 16) for _ in range(3))
    scores = net.scale(net.matmul(net.transpose(query, 1, 0, 2), net.transpose(key, 1, 2, 0)), 0.3)
    weights = net.op("Softmax", net.add(scores, net.input("mask", 1, 1, 20)), axis=-1)
    return net.reshape(net.transpose(net.matmul(weights, net.transpose(value, 1, 0, 2)), 1, 0, 2), 20, 48)


FP16_TOLERANCE = 2e-2
BF16_TOLERANCE = 5e-2
FP32_TOLERANCE = 1e-4
TF32_TOLERANCE = 1e-2
INT8_TOLERANCE = 1e-2  # a step of a byte
TRIALS = {"networks": 6, "product": 4, "image": 4, "dense": 4, "attention": 3, "bytes": 6}
PRECISIONS = {"networks": "fp32", "product": "fp16", "image": "tf32", "dense": "bf16", "attention": "fp16"}
NETWORKS: dict[str, Callable[[Any], Any]] = {
    "normalisations": normalisations,
    "depthwise": depthwise,
}
LARGER_TRIALS = 22
LARGER: dict[str, Callable[[Any], Any]] = {
    "mlp": make_models.mlp,
    "tiny_cnn": make_models.tiny_cnn,
    "convolution": convolution,
    "transformer": transformer,
}


def model_of(name: str, network: Callable[[Any], Any]) -> onnx.ModelProto:
    net = make_models.Net(name, seed=0, batch=1)
    return net.finish(network(net))


def side_by_side(networks: dict[str, Callable[[Any], Any]]) -> onnx.ModelProto:
    """One model that has all networks, with the inputs and the output of each."""
    models = [compose.add_prefix(model_of(name, network), f"{name}_") for name, network in networks.items()]
    together = models[0]
    for model in models[1:]:
        for field in ("node", "initializer", "input", "output"):
            getattr(together.graph, field).extend(getattr(model.graph, field))
    return together


@pytest.fixture(scope="session")
def tuned(made_once: MadeOnce, computing_gpu: StandIn) -> User:
    """A workspace in which networks were tuned in fp32, and others on tensor cores."""

    def make(folder: Path) -> None:
        user = make_user(folder)
        user.settle(SETTINGS)
        onnx.save(side_by_side(NETWORKS), str(folder / "networks.onnx"))
        onnx.save(model_of("product", product), str(folder / "product.onnx"))
        onnx.save(model_of("image", convolution), str(folder / "image.onnx"))
        onnx.save(model_of("dense", dense), str(folder / "dense.onnx"))
        onnx.save(model_of("attention", attention), str(folder / "attention.onnx"))
        for name, precision in PRECISIONS.items():
            submit(user, folder / f"{name}.onnx", precision, TRIALS[name])
        onnx.save(model_of("bytes", convolution), str(folder / "bytes.onnx"))
        np.savez(folder / "samples.npz", input=np.random.default_rng(1).standard_normal((4, 8, 14, 14), np.float32))
        submit(user, folder / "bytes.onnx", "int8", TRIALS["bytes"], "--calibrate", folder / "samples.npz")
        user.ok("daemon", "run", "--drain")

    with patch.dict(os.environ, computing_gpu.environment()):
        return User(made_once("tuned_for_cuda", make))


def submit(user: User, model: Path, precision: str, trials: int, *more: object) -> None:
    budget = ("--trials", trials, "--trials-per-round", 2)
    user.ok("submit", model, "--target", "cuda", "--precision", precision, *budget, *more)


@pytest.mark.parametrize(
    ("name", "outputs", "tolerance"),
    [
        ("networks", 2, FP32_TOLERANCE),
        ("product", 1, FP16_TOLERANCE),
        ("image", 1, TF32_TOLERANCE),
        ("dense", 1, BF16_TOLERANCE),
        ("attention", 1, FP16_TOLERANCE),
        ("bytes", 1, INT8_TOLERANCE),
    ],
)
def test_a_library_for_a_gpu_computes_what_onnx_runtime_does(tuned, computing_gpu, name, outputs, tolerance, tmp_path):
    assert len(onnx.load(str(tuned.root / f"{name}.onnx")).graph.output) == outputs
    with patch.dict(os.environ, computing_gpu.environment()):
        assert 0 <= largest_error(tuned, name, tmp_path / "out") <= tolerance


def largest_error(user: User, name: str, output: Path) -> float:
    user.ok("export", name, "--output", output)
    return float(json.loads((output / "report.json").read_bytes())["largest_relative_error"])


def test_a_calibrated_network_is_multiplied_on_tensor_cores_in_int8(tuned):
    (job,) = tuned.root.glob("jobs/*-bytes")
    hashes = [
        task["hash"] for task in json.loads((job / "spec.json").read_bytes())["tasks"] if "conv2d" in task["name"]
    ]
    assert hashes and all(any(tuned.root.glob(f"logs/tuning/*/{hash}.jsonl")) for hash in hashes)
    for hash in hashes:
        (log,) = tuned.root.glob(f"logs/tuning/*/{hash}.jsonl")
        assert all("autotune.pipeline_stages" in str(record["trace"]) for record in RecordLog(log, *FORMAT).read())


def test_attention_is_searched_for_its_projections_only_which_are_one_product(tuned):
    (job,) = tuned.root.glob("jobs/*-attention")
    tasks = {task["name"]: task["weight"] for task in json.loads((job / "spec.json").read_bytes())["tasks"]}
    assert [weight for name, weight in tasks.items() if "matmul" in name] == [1]
    assert not any("softmax" in name or "transpose" in name for name in tasks)


def test_no_candidate_was_wrong_or_died(tuned):
    assert outcomes(tuned) == [None] * sum(TRIALS.values())


def outcomes(user: User) -> list[object]:
    """The failure of each trial; None where there is none."""
    logs = user.root.glob("logs/tuning/*/*.jsonl")
    return [record.get("failure") for log in logs for record in RecordLog(log, *FORMAT).read()]


def test_networks_of_many_operators_compute_what_onnx_runtime_does(user, computing_gpu, tmp_path):
    user.settle(SETTINGS)
    onnx.save(side_by_side(LARGER), str(user.root / "larger.onnx"))
    with patch.dict(os.environ, computing_gpu.environment()):
        submit(user, user.root / "larger.onnx", "fp32", LARGER_TRIALS)
        user.ok("daemon", "run", "--drain")
        assert 0 <= largest_error(user, "larger", tmp_path / "out") <= FP32_TOLERANCE
    assert outcomes(user) == [None] * LARGER_TRIALS
