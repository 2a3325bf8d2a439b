"""A pause lengthens while trouble lasts, and is over when work succeeds."""

from __future__ import annotations

import logging

import pytest

from autotune.daemon import pause
from autotune.daemon.pause import Pause


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(pause.time, "monotonic", lambda: now[0])
    return now


def lasts(held: Pause, clock: list[float]) -> int:
    """Begin a pause, and wait until it is over: the seconds that took."""
    held.begin("the disk is full")
    began = clock[0]
    while held.on:
        clock[0] += 1
    return int(clock[0] - began)


def test_each_pause_is_longer_up_to_ten_seconds(clock: list[float]) -> None:
    held = Pause()
    assert [lasts(held, clock) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    held.end()
    assert (held.trouble, lasts(held, clock)) == ("", 1)


def test_what_goes_wrong_meanwhile_does_not_lengthen_it(clock: list[float]) -> None:
    held = Pause()
    for _ in range(5):
        held.begin("the disk is full")
    assert lasts(held, clock) == 1


def test_it_says_so_once_and_once_when_it_is_over(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autotune.daemon")
    held = Pause()
    lasts(held, clock)
    lasts(held, clock)
    held.end()
    held.end()
    assert [record.message for record in caplog.records] == [
        "paused: the disk is full",
        "goes on after: the disk is full",
    ]
