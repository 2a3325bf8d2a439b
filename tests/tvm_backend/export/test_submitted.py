"""Other ways to compute a model as submitted: constants move in the last bits, if it rounds and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.storage import formats
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export.submitted import rounds, submitted, with_moved_constants

W = np.linspace(-2, 2, 64, dtype=np.float32)


@pytest.mark.parametrize(("spec", "version"), [({}, 1), ({"inputs_version": 2}, 2)])
def test_a_job_draws_its_inputs_as_it_did_when_it_was_submitted(
    make_job: Callable[..., JobPaths], spec: dict[str, int], version: int
) -> None:
    paths = make_job(**spec)
    assert [model.inputs_version for model in submitted(paths, formats.read(formats.JobSpec, paths.spec))] == [version]


def model(kind: str) -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    nodes = [helper.make_node("Mul", ["x", "w"], ["wide"]), helper.make_node(kind, ["wide"], ["y"])]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.arange(4), "whole")]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), ir_version=8)


def test_a_model_that_rounds_gets_constants_a_few_units_away() -> None:
    copies = [onnx.ModelProto.FromString(content) for content in with_moved_constants(model("Floor"))]
    assert len(copies) > 1
    for copy in copies:
        weights, whole = map(numpy_helper.to_array, copy.graph.initializer)
        away = np.abs(weights - W) / np.spacing(np.abs(W))
        assert (away > 0).all() and (away < 9).all()
        assert np.array_equal(whole, np.arange(4))


@pytest.mark.parametrize(("kind", "does"), [("Relu", False), ("Exp", False), ("Floor", True)])
def test_a_smooth_model_does_not_round(kind: str, does: bool) -> None:
    assert rounds(model(kind)) is does


def test_the_scales_of_a_resize_stay_and_so_does_the_shape_of_its_output() -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, size, size]) for n, size in (("x", 4), ("y", 8)))
    nodes = [helper.make_node("Floor", ["x"], ["whole"]), helper.make_node("Resize", ["whole", "", "scales"], ["y"])]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    resized = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [scales]), ir_version=8)
    contents = list(with_moved_constants(resized))
    assert contents
    for content in contents:
        (kept,) = onnx.ModelProto.FromString(content).graph.initializer
        assert kept == scales
