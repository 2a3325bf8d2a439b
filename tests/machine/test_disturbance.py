"""A measurement that was disturbed is told from one that was not, by the difference of two samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.machine.disturbance import THRESHOLDS, Quiet, Sample, disturbance, slowed

# One second on two CPUs, both of which this process kept busy. The numbers were read on such a machine.
BEFORE = Sample(at=100.0, busy=1673.31, ours=40.0, waited=2.0, stolen=11.08, throttled=0.0, mhz=0.0)
ALONE = replace(BEFORE, at=101.0, busy=1675.31, ours=41.98, waited=2.004)


def test_nothing_disturbs_a_process_that_is_alone_or_on_a_machine_that_counts_nothing():
    assert disturbance(BEFORE, ALONE, 2) == ""
    zero = Sample(1.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0)
    assert disturbance(zero, replace(zero, at=2.0, ours=6.0), 1) == ""
    assert disturbance(zero, zero, 1) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ours": 41.30}, "other processes used 35% of its CPUs"),
        ({"waited": 2.30}, "its threads waited for a CPU for 30% of the time"),
        ({"stolen": 11.38}, "other virtual machines took 15% of its CPUs"),
        ({"throttled": 0.4}, "its container was stopped for 40% of the time (its CPU quota was used up)"),
    ],
)
def test_what_disturbs_is_named(changes, reason):
    assert disturbance(BEFORE, replace(ALONE, **changes), 2) == reason


def test_a_tick_or_two_in_a_short_measurement_say_nothing():
    """50 ms: one tick of somebody else's on each CPU is a fifth of the time, and may be a rounding."""
    after = replace(BEFORE, at=100.05, busy=BEFORE.busy + 0.12, ours=40.1, stolen=BEFORE.stolen + 0.02)
    assert disturbance(BEFORE, after, 2) == ""
    assert disturbance(BEFORE, replace(after, busy=after.busy + 0.05), 2) == "other processes used 70% of its CPUs"


def test_a_clock_that_falls():
    fast = replace(BEFORE, mhz=3500.0)
    slow = replace(ALONE, mhz=2100.0)
    assert disturbance(fast, slow, 2) == "the clock of its CPUs fell from 3500 to 2100 MHz"
    assert disturbance(slow, replace(fast, at=102.0), 2) == "", "and one that rises disturbs nobody"


class TestSentinel:
    QUIET = Quiet((60.6, 60.7, 61.0))

    def test_slow_before_and_after_is_slow_and_once_or_a_little_is_not(self):
        assert slowed((110.0, 106.0), self.QUIET) == "its CPU ran at 57% of the speed that it has when quiet"
        assert slowed((110.0, 61.0), self.QUIET) == ""
        assert slowed((THRESHOLDS.sentinel * 60.7,), self.QUIET) == ""
        assert slowed((110.0, 110.0), Quiet()) == "", "nothing is known at first"

    def test_a_machine_that_became_slower_for_good_is_what_is_usual_one_day(self):
        quiet = self.QUIET
        for _ in range(Quiet.KEPT):
            quiet = quiet.with_time(100.0)
        assert len(quiet.times_us) == Quiet.KEPT
        assert slowed((101.0, 101.0), quiet) == ""
