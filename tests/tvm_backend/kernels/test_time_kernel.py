"""Repeats are for candidates that may be the best; the others cost one, or none."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.kernels import time_kernel
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.kernels.cache_state import Caches, Context
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device

BEST = 100.0
ARGS = [["TENSOR", "float32", [8]]] * 2


@pytest.fixture(scope="module")
def library(tmp_path_factory, target, as_program):
    from tvm import te

    a = te.placeholder((8,), name="a")
    path = tmp_path_factory.mktemp("library") / "kernel.so"
    build_library(as_program(a, te.compute((8,), lambda i: a[i] * 2.0, name="b")), target, path)
    return path


class Clock(Runner):
    """Answers what a clock would, in turn; keeps how long each repeat was to last."""

    def answer(self, *times):
        self.times = list(times)
        self.lasted = []
        return self

    def _evaluate(self, module, tensors, number, repeats, min_repeat_ms, before=""):
        self.lasted.append(min_repeat_ms)
        return [self.times.pop(0) for _ in range(repeats)]


def clock(repeats=3):
    return Clock(open_device("llvm"), Timing(warmup=1, repeats=repeats, min_repeat_ms=10))


def test_the_first_candidate_of_a_task_gets_all_repeats(library):
    assert clock().answer(900, 500, 500, 500, 501, 502, 503).time(library, ARGS, None) == [501, 502, 503]


def test_a_candidate_that_is_hopeless_after_three_runs_gets_no_repeat(library):
    assert clock().answer(900, 301, 290, 302).time(library, ARGS, BEST) == [301, 290, 302]


@pytest.mark.parametrize(("once", "repeats"), [(131.0, 1), (129.0, 2), (104.0, 3)])
def test_a_candidate_gets_more_repeats_the_nearer_it_is_to_the_best(library, once, repeats):
    runner = clock().answer(900, 150, 150, 150, once, 129.0, 129.0)
    assert runner.time(library, ARGS, BEST) == [once, 129.0, 129.0][:repeats]
    assert runner.lasted == [0, 0, *[10] * repeats]


def test_a_disturbed_repeat_ends_nothing_where_a_run_was_fast(library):
    assert clock().answer(900, 150, 99, 150, 200.0, 100.0, 101.0).time(library, ARGS, BEST) == [200.0, 100.0, 101.0]


def test_a_real_clock_gives_a_time_for_each_repeat(library):
    times = Runner(open_device("llvm"), Timing(1, 4, 1)).time(library, ARGS, None)
    assert len(times) == 4 and all(0 < time < 1e6 for time in times)


def test_single_runs_are_timed_one_by_one(library):
    runner = Runner(open_device("llvm"), Timing(1, 1, 1))
    times = runner.time_runs(library, ARGS, 5)
    assert runner.on_cpu and len(times) == 5 and all(time > 0 for time in times)


class TestInContext:
    def test_a_repeat_is_the_median_of_single_runs_as_many_as_fill_its_time(self, library):
        runner = clock(repeats=1).answer(900, 2000, 2000, 2000, 5.0, 1.0, 4.0, 2.0, 3.0)
        runner.context = Context("L3", (0,))
        assert runner.time(library, ARGS, None) == [3.0], "10 ms hold five runs of 2 ms"
        assert runner.lasted == [0, 0, 0]

    def test_the_caches_are_prepared_before_each_run_and_for_the_arguments_of_the_kernel(self, library, monkeypatch):
        prepared = []

        class Noted(Caches):
            def __init__(self, context, tensors):
                super().__init__(context, tensors)
                self.count = len(tensors)

            def prepare(self, _read):
                prepared.append((self.context, self.count))

        monkeypatch.setattr(time_kernel, "Caches", Noted)
        runner = Runner(open_device("llvm"), Timing(1, 1, 1), Context("L2", (0,)))
        assert len(runner.time_runs(library, ARGS, 5)) == 5
        assert {context for context, _ in prepared} == {Context("L2", (0,))} and {count for _, count in prepared} == {2}
        runner.context = Context("memory")
        count = len(prepared)
        runner.time_runs(library, ARGS, 1)
        assert {context for context, _ in prepared[count:]} == {Context("memory")} and len(prepared) > count >= 5
