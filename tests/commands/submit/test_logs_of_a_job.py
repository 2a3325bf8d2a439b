"""The tuning logs of a job: those of its device, and of where kernels find the constants of its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands.submit.publish import _logs_of
from autotune.config import load_config
from autotune.devices import Cpu
from autotune.processes.messages import ImportAnswer

CPU = Cpu({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
LARGE = 2**40


def answer(key: str) -> ImportAnswer:
    return ImportAnswer(
        target=dict(CPU.target), target_key=key, inputs=(), tasks=(), spaces=(), constant_bytes=LARGE
    )  # fmt: skip


@pytest.mark.parametrize(("setting", "held"), [("", "memory"), ("[measure]\nin_context = false\n", "")])
def test_are_those_of_the_context_unless_kernels_are_to_be_timed_in_a_loop(
    tmp_path: Path, setting: str, held: str
) -> None:
    (tmp_path / "autotune.toml").write_text(setting)
    key = _logs_of(load_config(tmp_path / "autotune.toml"), answer(CPU.log_kind().key))
    assert key == next(kind.key for kind in CPU.log_kinds() if kind.held == held)


def test_of_a_board_are_the_same_for_every_model(tmp_path: Path) -> None:
    (tmp_path / "autotune.toml").write_text("")
    assert _logs_of(load_config(tmp_path / "autotune.toml"), answer("llvm-board-0123456789")) == "llvm-board-0123456789"
