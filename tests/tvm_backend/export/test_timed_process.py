"""How often a process times a model, and what it takes for the outputs of one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.tvm_backend.export import compare, timed_process


class Graph:
    """A model on a device: the first call computes and records, and later ones launch what was recorded, if they do."""

    def __init__(self, launches):
        self.launches, self.buffer = launches, None

    def __call__(self, x):
        if self.launches or self.buffer is None:
            self.buffer = tvm.runtime.tensor(x.numpy() * 2)
        return self.buffer


@pytest.mark.parametrize(("launches", "found"), [(True, [6.0]), (False, [0.0])])
def test_what_is_verified_of_a_graph_is_not_what_its_recording_left(launches, found):
    run = compare.MachineRun(Graph(launches), tvm.cpu(), [tvm.runtime.tensor(np.full(1, 3.0, "float32"))])
    assert timed_process.outputs_of_graph(run)[0].tolist() == found


@pytest.mark.parametrize(("limit", "timed"), [("_SLOWEST_S", 1), ("_SLOW_S", 2), ("_TIMING_S", 4)])
def test_a_slow_model_is_timed_less_often(monkeypatch, limit, timed):
    monkeypatch.setattr(timed_process, "_WARMUP_S", 0.0001)
    monkeypatch.setattr(timed_process, limit, 0.0)
    assert len(timed_process.timings(lambda: None, 4)) == timed
