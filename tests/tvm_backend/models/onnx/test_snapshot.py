"""A job keeps its model whole: in one file, or with the weights beside it where one file cannot hold them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.storage.job_files import model_checksum
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.models.onnx import snapshot
from autotune.tvm_backend.models.onnx.read import parse_file

WEIGHTS = np.arange(1024, dtype=np.float32)


def model():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(WEIGHTS, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def paths(tmp_path):
    return JobPaths(tmp_path)


def test_a_model_is_one_file(paths):
    snapshot.write_model(paths.model, paths.weights_of(paths.model), model())
    assert onnx.load(paths.model) == model() and not paths.weights_of(paths.model).exists()


def test_a_model_that_is_too_large_for_one_file_has_its_weights_beside_it(paths, monkeypatch):
    monkeypatch.setattr(snapshot, "_LARGEST", 4000)
    snapshot.write_model(paths.model, paths.weights_of(paths.model), model())
    assert paths.model.stat().st_size < 4000 <= paths.weights_of(paths.model).stat().st_size
    assert np.array_equal(numpy_helper.to_array(parse_file(paths.model).graph.initializer[0]), WEIGHTS)
    session = onnxruntime.InferenceSession(str(paths.model), providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": WEIGHTS})[0], 2 * WEIGHTS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.bool_, np.complex128])
def test_whether_a_model_is_large_is_decided_by_the_bytes_of_its_weights(monkeypatch, dtype):
    weights = [numpy_helper.from_array(np.zeros(100, dtype), "w"), TensorProto(name="f", float_data=[0.0] * 1000)]
    graph = helper.make_graph([], "g", [], [], weights)
    size = 100 * np.dtype(dtype).itemsize
    monkeypatch.setattr(snapshot, "_LARGEST", size)
    assert not snapshot.is_large(helper.make_model(graph))
    monkeypatch.setattr(snapshot, "_LARGEST", size - 1)
    assert snapshot.is_large(helper.make_model(graph))


def test_the_checksum_of_a_model_covers_the_weights_beside_it(paths, monkeypatch):
    monkeypatch.setattr(snapshot, "_LARGEST", 4000)
    snapshot.write_model(paths.model, paths.weights_of(paths.model), model())
    size, crc = model_checksum(paths)
    assert size == paths.model.stat().st_size + paths.weights_of(paths.model).stat().st_size
    paths.weights_of(paths.model).write_bytes(bytes(reversed(paths.weights_of(paths.model).read_bytes())))
    assert model_checksum(paths) != (size, crc)


def test_models_share_the_weights_that_they_have_in_common(paths):
    other = model()
    other.graph.initializer.append(numpy_helper.from_array(WEIGHTS[::-1].copy(), "v"))
    shared = snapshot.SharedWeights(paths.rewritten_weights)
    for index, proto in enumerate((model(), other)):
        shared.write(paths.rewritten_model(index), proto)
    assert paths.rewritten_weights.stat().st_size == 2 * WEIGHTS.nbytes
    first, second = (
        {item.name: numpy_helper.to_array(item) for item in parse_file(paths.rewritten_model(index)).graph.initializer}
        for index in range(2)
    )
    assert np.array_equal(first["w"], WEIGHTS)
    assert np.array_equal(second["w"], WEIGHTS) and np.array_equal(second["v"], WEIGHTS[::-1])
