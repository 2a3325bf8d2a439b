"""How often a process times a model, and what it takes for the outputs of one."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tvm

from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.timing import timed_process


class Graph:
    """A model on a device: the first call computes and records, and later ones launch what was recorded, if they do."""

    def __init__(self, launches):
        self.launches = launches
        self.buffer = None

    def __call__(self, x):
        if self.launches or self.buffer is None:
            self.buffer = tvm.runtime.tensor(x.numpy() * 2)
        return self.buffer


@pytest.mark.parametrize(("launches", "output"), [(True, [6.0]), (False, [0.0])])
def test_what_is_verified_of_a_graph_is_not_what_its_recording_left(launches, output):
    run = runners.MachineRun(Graph(launches), tvm.cpu(), [tvm.runtime.tensor(np.full(1, 3.0, "float32"))], None)
    assert timed_process.outputs_of_graph(run)[0].tolist() == output


@pytest.mark.parametrize(("limit", "timed"), [("_SLOWEST_S", 1), ("_SLOW_S", 2), ("_TIMING_S", 4)])
def test_a_slow_model_is_timed_less_often(monkeypatch, limit, timed):
    monkeypatch.setattr(timed_process, "_WARMUP_S", 0.0001)
    monkeypatch.setattr(timed_process, "_TIMING_S", 0.0001)
    monkeypatch.setattr(timed_process, "_SLOW_S", 0.0 if limit == "_SLOWEST_S" else timed_process._SLOW_S)
    monkeypatch.setattr(timed_process, limit, 0.0)
    timer = timed_process.Timer(lambda: None)
    times = [timer.time() for _ in range(4)]
    assert [value is not None for value in times] == [True] * timed + [False] * (4 - timed)


def test_a_timing_ends_when_the_threads_sleep():
    """A thread that spins for 0.2 s after a run would slow down the process that is timed next."""
    began = time.perf_counter()

    def spin():
        while time.perf_counter() - began < 0.2:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    timed_process._settle()
    assert not thread.is_alive() or time.perf_counter() - began > 0.2


def test_a_process_that_never_sleeps_is_not_waited_for_forever():
    ended = threading.Event()

    def spin():
        while not ended.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    timed_process._settle()
    spinning = thread.is_alive()
    ended.set()
    thread.join()
    assert spinning
