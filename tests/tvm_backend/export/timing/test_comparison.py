"""Runtimes that are timed by turns, each alone in a fresh process."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import WorkerError
from autotune.options import InputSpec
from autotune.tvm_backend.export.compilation import compile_tuned
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.timing import comparison as room
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.kernels.build_kernel import link_shared
from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model

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
    ours = comparison.outputs("ours")
    theirs = comparison.outputs("theirs")
    assert accuracy.check(ours, theirs, 1e-5) < 1e-5
    assert np.abs(theirs[0]).max() > 0.5


class Process:
    """Stands for a process with a runtime: writes down what is asked of it, and answers with the times that it gets."""

    def __init__(self, name, log, times, waited_s=0.0):
        self.name = name
        self.log = log
        self.times = times
        self.waited_s = waited_s

    def __enter__(self):
        self.log.append(("begun", self.name))
        return self

    def __exit__(self, *_):
        self.log.append(("ended", self.name))

    def imported(self):
        self.log.append(("imported", self.name))

    def load(self):
        self.log.append(("loaded", self.name))
        return {"load_ms": 1.0, "memory": 1}

    def time(self):
        self.log.append(("timed", self.name))
        return next(self.times)

    def kernels(self):
        self.log.append(("kernels", self.name))
        return [{"name": "exp", "calls": 1, "us": next(self.times)}]


@pytest.fixture
def processes(monkeypatch):
    """Replaces processes. The test says how many seconds they take and what each turn of a runtime finds."""

    class Processes:
        def __init__(self):
            self.log = []
            self.turns = {}
            self.waited_s = {}

        def begun(self):
            return [name for what, name in self.log if what == "begun"]

        def start(self, name):
            times = itertools.repeat(next(self.turns[name])) if name in self.turns else itertools.repeat(1.0)
            return Process(name, self.log, times, self.waited_s.get(name, 0.0))

    made = Processes()
    monkeypatch.setattr(RuntimeComparison, "_start", lambda self, name, **_: made.start(name))
    return made


def test_every_turn_starts_a_new_process_for_each_runtime(comparison, monkeypatch):
    start = RuntimeComparison._start
    begun = []
    monkeypatch.setattr(RuntimeComparison, "_start", lambda self, name: begun.append(name) or start(self, name))
    times = comparison.time(timings=TIMINGS + 1)
    assert begun == ["ours", "theirs", "theirs", "ours"]
    for item in times.values():
        assert [len(values) for values in (item.turns_ms, item.loads_ms, item.memory)] == [2, 2, 2]
        assert [len(timings) for timings in item.timings_ms] == [TIMINGS, TIMINGS]
        assert min(item.turns_ms) > 0 and min(item.loads_ms) > min(item.turns_ms)


def test_kernels_have_the_times_of_the_fastest_of_three_processes(comparison, processes):
    processes.turns["ours"] = iter([5.0, 3.0, 4.0, 1.0])
    times = comparison.time(4 * TIMINGS, kernels_of="ours")
    assert [kernel.us for kernel in times["ours"].fastest_kernels()] == [3.0]
    assert not times["theirs"].fastest_kernels()
    last = [what for what, name in processes.log if name == "ours"][-8:]
    assert last == ["begun", "imported", "loaded", *["timed"] * TIMINGS, "ended"], "no kernels"
    first = processes.log[: processes.log.index(("ended", "ours"))]
    assert first.index(("kernels", "ours")) > first.index(("timed", "theirs")), "when both have been timed"


def test_kernels_of_a_model_that_takes_seconds_are_timed_in_one_process(comparison, processes):
    processes.turns["ours"] = iter([5.0, 3.0])
    processes.waited_s["ours"] = 6.0
    times = comparison.time(2 * TIMINGS, kernels_of="ours")
    assert [kernel.us for kernel in times["ours"].fastest_kernels()] == [5.0]


def test_within_a_turn_runtimes_are_timed_one_after_the_other(comparison, processes):
    comparison.time(3)
    steps = ("begun", "imported", "loaded")
    assert processes.log[:6] == [(what, name) for what in steps for name in ("ours", "theirs")]
    assert [name for what, name in processes.log if what == "timed"] == [
        *("ours", "theirs"),
        *("theirs", "ours"),
        *("ours", "theirs"),
    ]


def test_on_a_machine_with_little_memory_a_runtime_ends_before_the_next_begins(comparison, processes, monkeypatch):
    monkeypatch.setattr(room, "memory_bytes", lambda: 1000)
    comparison.time(2)
    of_one = ["begun", "imported", "loaded", "timed", "timed", "ended"]
    assert [what for what, _ in processes.log] == [*of_one, *of_one]
    assert [name for _, name in processes.log] == ["ours"] * 6 + ["theirs"] * 6


def test_a_slow_model_is_timed_less_often(comparison, processes, monkeypatch):
    monkeypatch.setattr(processes, "start", lambda name: Process(name, [], iter([2.0, None, None, None])))
    assert comparison.time(TIMINGS)["ours"].timings_ms == [(2.0,)]


def test_no_turn_begins_after_slow_ones(comparison, processes):
    times = comparison.time(timings=3 * TIMINGS, longest_s=0.0)
    assert [len(item.turns_ms) for item in times.values()] == [1, 1]


@pytest.mark.parametrize(("longest_s", "turns"), [(5.9, 1), (6.0, 2), (8.9, 2), (9.0, 3)])
def test_no_turn_begins_that_would_not_end_in_time(comparison, processes, monkeypatch, longest_s, turns):
    """Each takes three seconds, and five were asked for."""
    monkeypatch.setattr(room.time, "monotonic", lambda: 3.0 * processes.begun().count("ours"))
    times = comparison.time(timings=5 * TIMINGS, longest_s=longest_s)
    assert [len(item.turns_ms) for item in times.values()] == [turns, turns]


@pytest.mark.parametrize(
    ("theirs_ms", "turns"),
    (([2.0], 3), ([2.0, 4.0], 15), ([2.0, 4.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 8)),
    ids=("steady", "unsteady", "disturbed once"),
)
def test_two_runtimes_get_turns_until_their_ratio_is_certain(comparison, processes, theirs_ms, turns):
    """Three that agree are enough. Of five ratios all count; of eight the smallest and the largest are left out."""
    processes.turns = {"theirs": itertools.cycle(theirs_ms)}
    times = comparison.time(5 * TIMINGS, pair=("ours", "theirs"))
    assert [len(item.turns_ms) for item in times.values()] == [turns, turns]


@pytest.mark.parametrize(("seconds", "turns"), [(1.0, 15), (2.9, 6), (6.0, 3), (70.0, 1)])
def test_an_uncertain_pair_gets_three_turns_and_more_while_there_is_time(
    comparison, processes, monkeypatch, seconds, turns
):
    """Five were asked for, of three seconds each."""
    processes.turns = {"theirs": itertools.cycle([2.0, 4.0])}
    monkeypatch.setattr(room.time, "monotonic", lambda: seconds * processes.begun().count("ours"))
    times = comparison.time(5 * TIMINGS, pair=("ours", "theirs"))
    assert [len(item.turns_ms) for item in times.values()] == [turns, turns]


def test_runtimes_outside_of_the_pair_get_no_further_turns(library, processes):
    processes.turns = {"theirs": itertools.count(1.0)}
    three = {name: Runtime("library", library) for name in ("slow", "ours", "theirs")}
    with RuntimeComparison(three, INPUTS, draw(INPUTS, 1), threads=1) as made:
        made.time(5 * TIMINGS, pair=("ours", "theirs"))
    begun = processes.begun()
    assert begun[:6] == ["slow", "ours", "theirs", "theirs", "ours", "slow"]
    assert begun[15:] and "slow" not in begun[15:]


def test_a_slow_runtime_outside_of_the_pair_gets_one_turn(library, processes):
    processes.waited_s = {"slow": 6.0, "ours": 6.0, "theirs": 6.0}
    runtimes = {name: Runtime("library", library) for name in ("slow", "brief", "ours", "theirs")}
    with RuntimeComparison(runtimes, INPUTS, draw(INPUTS, 1), threads=1) as made:
        times = made.time(5 * TIMINGS, pair=("ours", "theirs"))
    assert [len(item.turns_ms) for item in times.values()] == [1, 3, 3, 3]


def test_a_runtime_that_is_timed_once_is_in_the_first_turn_only(comparison, processes):
    times = comparison.time(3 * TIMINGS, once={"theirs"})
    assert {name: len(item.turns_ms) for name, item in times.items()} == {"ours": 3, "theirs": 1}
    assert processes.begun() == ["ours", "theirs", "ours", "ours"]


def test_fewer_than_five_turns_are_not_made_more(comparison, processes):
    processes.turns = {"ours": itertools.count(1.0), "theirs": itertools.count(1.0, 7.0)}
    times = comparison.time(2 * TIMINGS, pair=("ours", "theirs"))
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
    times = RuntimeTimes([(5.0, 5.5, 1.0), (3.0,), (4.0,)])
    assert (times.median_ms, times.spread_ms) == (4.0, (3.0, 5.0))


def test_a_ratio_is_taken_between_timings_that_follow_each_other():
    """In the second turn, the machine was slow at the first timing of both."""
    ours = RuntimeTimes([(2.0,), (9.0, 3.0, 3.0)])
    theirs = RuntimeTimes([(4.0,), (12.0, 4.0, 4.0)])
    assert ratios(ours, theirs) == [0.5, 0.75]
