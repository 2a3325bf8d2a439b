"""A pause lengthens while trouble lasts, and is over when work succeeds."""

from __future__ import annotations

import logging

import pytest

from autotune.daemon.clock import DaemonClock, Pause


class ManualClock(DaemonClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def held() -> Pause:
    return Pause(clock=ManualClock())


def lasts(held: Pause) -> int:
    """Begin a pause, and wait until it is over: the seconds that took."""
    clock = held.clock
    assert isinstance(clock, ManualClock)
    held.begin("the disk is full")
    began = clock.now
    while held.on:
        clock.now += 1
    return int(clock.now - began)


def test_each_pause_is_longer_up_to_ten_seconds(held: Pause) -> None:
    for _ in range(5):
        held.begin("the disk is full")  # what goes wrong meanwhile does not lengthen it
    assert [lasts(held) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert held.end() and not held.end()
    assert (held.trouble, lasts(held)) == ("", 1)


def test_a_pause_is_logged_once_when_it_begins_and_once_when_it_is_over(
    held: Pause, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotune.daemon")
    lasts(held)
    lasts(held)
    held.end()
    held.end()
    assert [record.message for record in caplog.records] == [
        "paused: the disk is full",
        "goes on after: the disk is full",
    ]
