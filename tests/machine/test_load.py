"""Counters of the kernel, from trees as it shows them, and once from the real one."""

from __future__ import annotations

import os
import time

import pytest

from autotune.machine import disturbance
from autotune.machine.disturbance import sample, watched

# Read on a machine with two CPUs and a tick of 10 ms.
STAT = """cpu  126718 13746 26467 39758 791 0 353 1109 0 0
cpu0 56955 8653 13512 24354 384 0 20 565 0 0
cpu1 69762 5092 12954 15404 407 0 333 543 0 0
intr 880028 0 0 0
ctxt 4019923"""
CPU = "sys/devices/system/cpu"


@pytest.fixture(autouse=True)
def ticks_of_ten_ms(monkeypatch):
    monkeypatch.setattr(disturbance, "_TICK_S", 0.01)


def test_the_counters_of_the_watched_cpus_are_summed(plant):
    root = plant(
        {
            "proc/stat": STAT,
            "proc/self/task/7/schedstat": "5000000000 1500000000 31",
            "proc/self/task/8/schedstat": "9000000000 500000000 4",
            f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 3000000,
            f"{CPU}/cpu1/cpufreq/scaling_cur_freq": 2000000,
        }
    )
    both = sample((0, 1), root)
    assert both.busy == pytest.approx((56955 + 8653 + 13512 + 20 + 69762 + 5092 + 12954 + 333) / 100)
    assert both.stolen == pytest.approx((565 + 543) / 100)
    assert both.waited == pytest.approx(2.0)
    assert both.mhz == pytest.approx(2500)
    assert sample((1,), root).stolen == pytest.approx(5.43)


def test_what_the_system_does_not_count_is_zero(plant):
    empty = sample((0,), plant({"proc/version": "other"}))
    assert (empty.busy, empty.waited, empty.stolen, empty.throttled, empty.mhz) == (0, 0, 0, 0, 0)


def test_all_threads_of_a_core_are_watched(plant):
    root = plant({f"{CPU}/cpu{n}/topology/core_cpus_list": f"{n % 4},{n % 4 + 4}" for n in range(8)})
    assert watched((0, 2), root) == (0, 2, 4, 6)


def test_this_process_is_seen_to_work():
    before = sample(sorted(os.sched_getaffinity(0)))
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = sample(sorted(os.sched_getaffinity(0)))
    assert after.ours - before.ours >= 0.05
    assert after.busy >= before.busy
    assert after.at > before.at
