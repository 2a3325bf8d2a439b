"""Layers of a quantised model stay in floats until its answers are within the limit; all others are in bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from autotune.storage.quantisation import FloatLayer, Quantisation
from autotune.tvm_backend.models.onnx import mixed
from autotune.tvm_backend.models.onnx.quantise import quantise
from autotune.tvm_backend.models.onnx.simplify import open_session

from ...quantised_nets import Network

SAMPLES = 96
LOUD = 3000.0  # times as large as the others is one channel, so that bytes leave nothing of them


def network(loud: bool = True) -> Network:
    """A network whose second convolution cannot do with bytes, if a channel is loud: its answer is in the others."""
    net = Network((1, 3, 8, 8))
    net.add("Relu", net.conv(3, 16))
    net.add("Clip", net.conv(16, 16), net.constant(np.float32(0)), net.constant(np.float32(1e6)))
    net.conv(16, 16)
    net.add("Flatten", net.last)
    net.matmul(64, 4)
    if loud:
        first, bias, second = (numpy_helper.to_array(net.constants[index]).copy() for index in (0, 1, 2))
        first[0] *= LOUD
        bias[0] *= LOUD
        second[:, 0] /= LOUD
        for index, value in ((0, first), (1, bias), (2, second)):
            net.constants[index] = numpy_helper.from_array(value, f"constant{index}")
    return net


@pytest.fixture
def calibration(tmp_path):
    path = tmp_path / "calibration.npz"
    np.savez(path, input=np.random.default_rng(1).standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32))
    return path


@pytest.fixture
def bytes_are_faster(monkeypatch):
    """Layers as small as these take any time: here bytes take half of that of floats."""

    def least_ms(model):
        return 0.5 if any(node.op_type == "QuantizeLinear" for node in model.graph.node) else 1.0

    monkeypatch.setattr(mixed, "_least_ms", least_ms)


def convolutions(proto):
    """The names of the convolutions in floats, and of those in bytes."""
    makers = {node.output[0]: node for node in proto.graph.node}
    kinds = {True: [], False: []}
    for node in proto.graph.node:
        if node.op_type == "Conv":
            kinds[node.input[1] in makers].append(node.name)
    return kinds[False], kinds[True]


@pytest.mark.usefixtures("bytes_are_faster")
def test_the_layer_that_changes_answers_stays_in_floats(calibration, tmp_path):
    model = network().model()
    _, whole = quantise(tmp_path / "model.onnx", model, calibration)
    proto, cost = quantise(tmp_path / "model.onnx", model, calibration, max_drop=0.05)
    assert whole.agreement < 0.95 <= cost.agreement
    floats, quantised = convolutions(proto)
    assert {layer.name for layer in cost.floats} >= set(floats)
    assert "value2" in floats and quantised, "the second convolution reads the loud channel"
    assert f"{len(cost.floats)} of {cost.layers} layers stay in float32" in cost.text()
    onnx.checker.check_model(proto)


@pytest.mark.usefixtures("bytes_are_faster")
def test_the_models_that_were_measured_go_from_the_one_in_bytes_to_the_one_that_was_taken(calibration, tmp_path):
    _, cost = quantise(tmp_path / "model.onnx", network().model(), calibration, max_drop=0.05)
    taken = [model for model in cost.curve if model.floats == len(cost.floats) and model.error == cost.error]
    (whole,) = (model for model in cost.curve if model.floats == 0)
    assert taken and taken[0].agreement == cost.agreement > whole.agreement
    assert [model.time for model in cost.curve] == sorted(model.time for model in cost.curve)


def test_nothing_stays_in_floats_where_the_answers_are_within_the_limit(calibration, tmp_path):
    proto, cost = quantise(tmp_path / "model.onnx", network(loud=False).model(), calibration, max_drop=0.5)
    assert not cost.floats and not convolutions(proto)[0]


def test_a_layer_that_is_no_faster_in_bytes_stays_in_floats_once_it_is():
    slower = FloatLayer("slower", 0.1, 1.0, 2.0)
    faster = FloatLayer("faster", 0.1, 2.0, 1.0)
    layers = [slower, faster]

    class Graph:
        def with_floats(self, names):
            return names

    search = mixed._Search(Graph(), lambda names: Quantisation(10, 0.0, 1.0), 0.1, layers, {})
    assert search.without_needless(layers) == [slower]


def test_a_limit_of_zero_is_kept_by_leaving_as_many_in_floats_as_it_takes(calibration, tmp_path):
    model = network().model()
    proto, cost = quantise(tmp_path / "model.onnx", model, calibration, max_drop=0.0)
    assert cost.agreement == 1.0
    sessions = [open_session(item, ()) for item in (model, proto)]
    samples = np.load(calibration)["input"]
    answers = [[session.run(None, {"input": sample[None]})[0].argmax() for sample in samples] for session in sessions]
    assert answers[0] == answers[1]
