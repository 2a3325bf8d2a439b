"""Nothing that autotune says makes a terminal do anything but show it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autotune.commands import daemon_log
from autotune.commands.terminal import say, tell

SPOILT = "a\x1b[2Jb"


def test_messages_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    say(SPOILT)
    tell(SPOILT + "\nsecond line")
    said = capsys.readouterr()
    assert (said.err, said.out) == ("a?[2Jb\n", "a?[2Jb\nsecond line\n")


def test_the_lines_of_a_daemon_in_the_foreground(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    daemon_log.begin(tmp_path / "daemon.log", 1000)
    logging.getLogger("autotune.daemon").info("blocking %s", SPOILT)
    assert capsys.readouterr().err.endswith(" blocking a?[2Jb\n")
