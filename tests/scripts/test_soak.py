"""scripts/soak.py: what it takes for flat, and what for growth."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def soak(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("soak")


def samples(soak: ModuleType, **change: Any) -> list[Any]:
    """Half an hour of a daemon and of workers that are replaced every five minutes; `change` is of the daemon."""
    noise = random.Random(0)
    found = []
    for at in range(0, 1800, 5):
        daemon = {"memory_mb": 40 + noise.random(), "files": 10, "threads": 1, "children": 2}
        daemon |= {name: value(at) for name, value in change.items()}
        found.append(soak.Sample(at, soak.DAEMON, 1, **daemon))
        found.append(soak.Sample(at, "llvm worker", 2 + at // 300, 230 + (at % 300) / 100, 5, 1, at // 5 % 3))
    return found


def test_noise_and_workers_that_grow_until_they_are_replaced_are_flat(soak, capsys):
    assert soak.judge(samples(soak))
    out = capsys.readouterr().out
    assert "GROWS" not in out
    assert "llvm workers: 6, one after the other; the longest was there for 295 s" in out
    assert out.endswith("verdict: flat, and workers are replaced\n")


def test_what_grows_only_while_it_warms_up_is_flat(soak):
    assert soak.judge(samples(soak, memory_mb=lambda at: min(40, 10 + at / 10)))


def test_a_few_samples_far_off_are_flat(soak):
    assert soak.judge(samples(soak, files=lambda at: 500 if at in (1700, 1750, 1795) else 10))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", lambda at: 40 + 24 * at / 3600),  # the 1.2 MB in 3 minutes that were found
        ("files", lambda at: 10 + at // 400),
        ("threads", lambda at: 1 + at // 400),
        ("children", lambda at: 2 + at // 400),
    ],
)
def test_steady_growth_is_found(soak, capsys, name, value):
    assert not soak.judge(samples(soak, **{name: value}))
    assert capsys.readouterr().out.endswith(f"verdict: {name} of daemon grows\n")


def test_a_worker_that_is_never_replaced_is_found(soak, capsys):
    assert not soak.judge([sample for sample in samples(soak) if sample.pid < 3])
    assert "no llvm worker was replaced" in capsys.readouterr().out


def test_a_look_sees_this_process(soak):
    (sample,) = soak.look(os.getpid(), 1.0)
    assert (sample.role, sample.pid) == (soak.DAEMON, os.getpid())
    assert sample.memory_mb > 5
    assert sample.files >= 3
    assert sample.threads >= 1
