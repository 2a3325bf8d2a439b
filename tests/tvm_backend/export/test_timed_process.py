"""How often a process times a model depends on how long a run takes."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.export import timed_process


@pytest.mark.parametrize(("limit", "timed"), [("_SLOWEST_S", 1), ("_SLOW_S", 2), ("_TIMING_S", 4)])
def test_a_slow_model_is_timed_less_often(monkeypatch, limit, timed):
    monkeypatch.setattr(timed_process, "_WARMUP_S", 0.0001)
    monkeypatch.setattr(timed_process, limit, 0.0)
    assert len(timed_process.timings(lambda: None, 4)) == timed
