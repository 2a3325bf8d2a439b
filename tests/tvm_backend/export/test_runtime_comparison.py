"""Runtimes that are timed by turns, each alone in a fresh process."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import WorkerError
from autotune.storage.formats import InputSpec
from autotune.tvm_backend.export import compare, runtime_comparison
from autotune.tvm_backend.export.compile import compile_tuned
from autotune.tvm_backend.export.inputs import draw
from autotune.tvm_backend.export.runtime_comparison import Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.graph.model import read_model
from autotune.tvm_backend.graph.prepare import prepare
from autotune.tvm_backend.kernels.build import link_shared

# NumPy's function that saves arrays by name has a parameter of this name.
NAME = "file"
INPUTS = (InputSpec(NAME, (1, 64), "float32"),)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An ONNX file that computes a hyperbolic tangent."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in (NAME, "y")]
    graph = helper.make_graph([helper.make_node("Tanh", [NAME], ["y"])], "tanh", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("model") / "tanh.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture(scope="module")
def library(model, target):
    path = model.with_suffix(".so")
    prepared = prepare(read_model(model, {}).module, target)
    compile_tuned(prepared, [], {}, target).export_library(str(path), fcompile=link_shared)
    return path


@pytest.fixture
def comparison(model, library):
    both = {"ours": Runtime("library", library), "theirs": Runtime("onnxruntime", model)}
    with RuntimeComparison(both, INPUTS, draw(INPUTS, 1), threads=1) as made:
        yield made


def test_each_computes_the_model_in_its_own_process(comparison):
    ours, theirs = comparison.outputs("ours"), comparison.outputs("theirs")
    assert compare.check(ours, theirs, 1e-5) < 1e-5
    assert np.abs(theirs[0]).max() > 0.5


def test_all_start_anew_for_every_turn(comparison, monkeypatch):
    begun = []
    answer = runtime_comparison._answer
    monkeypatch.setattr(runtime_comparison, "_answer", lambda name, *rest: begun.append(name) or answer(name, *rest))
    times = comparison.time(timings=runtime_comparison.TIMINGS + 1)
    assert begun == ["ours", "theirs", "theirs", "ours"]
    for item in times.values():
        assert [len(values) for values in (item.turns_ms, item.loads_ms, item.memory)] == [2, 2, 2]
        assert min(item.turns_ms) > 0 and min(item.loads_ms) > min(item.turns_ms)


def test_no_turn_begins_after_slow_ones(comparison, monkeypatch):
    monkeypatch.setattr(runtime_comparison, "_LONG_S", 0.0)
    times = comparison.time(timings=3 * runtime_comparison.TIMINGS)
    assert [len(item.turns_ms) for item in times.values()] == [1, 1]


@pytest.mark.parametrize(
    ("theirs_ms", "turns"),
    (([2.0], 5), ([2.0, 4.0], 15), ([2.0, 2.0, 2.0, 2.0, 4.0, 2.0, 2.0, 2.0, 2.0], 8)),
    ids=("steady", "unsteady", "disturbed once"),
)
def test_two_runtimes_get_further_turns_while_their_ratio_is_uncertain(comparison, monkeypatch, theirs_ms, turns):
    """Of five ratios all count; of eight the smallest and the largest are left out."""
    asked = []

    def answer(name, *_):
        asked.append(name)
        theirs = theirs_ms[(asked.count("theirs") - 1) % len(theirs_ms)]
        return {"ms": [theirs if name == "theirs" else 1.0], "load_ms": 1.0, "memory": 1}

    monkeypatch.setattr(runtime_comparison, "_answer", answer)
    times = comparison.time(5 * runtime_comparison.TIMINGS, pair=("ours", "theirs"))
    assert [len(item.turns_ms) for item in times.values()] == [turns, turns]


def test_runtimes_outside_of_the_pair_get_no_further_turns(library, monkeypatch):
    asked = []

    def answer(name, *_):
        asked.append(name)
        return {"ms": [float(len(asked))], "load_ms": 1.0, "memory": 1}

    monkeypatch.setattr(runtime_comparison, "_answer", answer)
    three = {name: Runtime("library", library) for name in ("slow", "ours", "theirs")}
    with RuntimeComparison(three, INPUTS, draw(INPUTS, 1), threads=1) as made:
        made.time(5 * runtime_comparison.TIMINGS, pair=("ours", "theirs"))
    assert asked[:6] == ["slow", "ours", "theirs", "theirs", "ours", "slow"]
    assert asked[15:] and "slow" not in asked[15:]


def test_fewer_than_five_turns_are_not_made_more(comparison, monkeypatch):
    monkeypatch.setattr(runtime_comparison, "_answer", lambda *_: {"ms": [next(ms)], "load_ms": 1.0, "memory": 1})
    ms = iter(range(1, 100))
    times = comparison.time(2 * runtime_comparison.TIMINGS, pair=("ours", "theirs"))
    assert [len(item.turns_ms) for item in times.values()] == [2, 2]


def test_the_memory_is_that_of_the_model_and_not_that_of_the_runtime(tmp_path):
    """A model with 40 MB of weights takes them, and less than the 100 MB and more that importing takes."""
    name = tmp_path / "big.onnx"
    weight = numpy_helper.from_array(np.ones((1000, 10000), np.float32), "w")
    tensors = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1000)),
        helper.make_empty_tensor_value_info("y"),
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "big", tensors[:1], tensors[1:], [weight]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(name))
    inputs = (InputSpec("x", (1, 1000), "float32"),)
    with RuntimeComparison({"it": Runtime("onnxruntime", name)}, inputs, draw(inputs, 1), threads=1) as made:
        (taken,) = made.time(timings=1)["it"].memory
    assert 40e6 < taken < 200e6


def test_a_file_that_a_runtime_cannot_load_is_an_error_of_one_line(library):
    with (
        RuntimeComparison(
            {"theirs": Runtime("onnxruntime", library)}, INPUTS, [np.zeros((1, 64), np.float32)], 1
        ) as wrong,
        pytest.raises(WorkerError, match="theirs cannot run the model: ") as caught,
    ):
        wrong.outputs("theirs")
    assert "\n" not in str(caught.value)


def test_the_median_has_a_spread():
    times = RuntimeTimes([5.0, 3.0, 4.0])
    assert (times.median_ms, times.spread_ms) == (4.0, (3.0, 5.0))


def test_a_ratio_is_taken_within_a_turn():
    assert ratios(RuntimeTimes([2.0, 6.0]), RuntimeTimes([4.0, 8.0])) == [0.5, 0.75]
