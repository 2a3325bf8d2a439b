"""Boards are devices of the kind of their section, and share a lease with whoever asks the same tracker for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.device_settings import BoardSettings
from autotune.devices import Board
from autotune.errors import MachineProblem

PHONE = BoardSettings(tracker="lab.example:9190", key="rk 3588", count=2)
TARGET = {"kind": "llvm", "num-cores": 4}


def test_each_board_is_a_device_of_the_kind_of_its_section() -> None:
    assert Board.lent(Config(boards={"phone": PHONE})) == ("rpc-phone:0", "rpc-phone:1")
    assert Board.section_of(Board.kind_of("my-phone")) == "my-phone"


def test_a_board_has_one_lock_whatever_its_section_is_called() -> None:
    names = {Board.lock_name(f"rpc-{name}:1", Config(boards={name: PHONE})) for name in ("phone", "mobile")}
    assert names == {"rpc-lab.example_9190-rk_3588-1"}


def test_a_job_whose_section_is_gone_or_means_other_boards_is_refused() -> None:
    key = Board(TARGET, "phone", PHONE).log_kind().key
    Board(TARGET, "renamed", PHONE).check_here(key)
    with pytest.raises(MachineProblem, match=r"it is for the boards \[devices.phone\], which autotune.toml does not"):
        Board(TARGET, "phone", None).check_here(key)
    with pytest.raises(MachineProblem, match=r"submitted when \[devices.phone\] had another key"):
        Board(TARGET, "phone", BoardSettings(key="other")).check_here(key)


def test_each_candidate_of_a_measurement_may_wait_for_a_board_three_times() -> None:
    patient = replace(PHONE, request_timeout_s=PHONE.request_timeout_s + 100.0)
    soon, late = (Board(TARGET, "phone", settings).measure_limit_s(Config(), 8) for settings in (PHONE, patient))
    assert late - soon >= 3 * 8 * 100.0
