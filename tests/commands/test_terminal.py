"""Nothing that autotune says makes a terminal do anything but show it."""

from __future__ import annotations

import io
import logging
import os
import re
from pathlib import Path

import pytest

from autotune.commands import render
from autotune.commands.daemon.daemon import log_to_standard_error
from autotune.commands.terminal import say, show, steps, tell

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
    log_to_standard_error(tmp_path / "daemon.log", 1000)
    logging.getLogger("autotune.daemon").info("blocking %s", SPOILT)
    assert capsys.readouterr().err.endswith(" blocking a?[2Jb\n")


def test_lines_that_nobody_reads_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(writer, "w", buffering=1) as stream:
        monkeypatch.setattr("sys.stderr", stream)
        log_to_standard_error(tmp_path / "daemon.log", 1000)
        for number in range(2000):  # far more than a pipe holds, and nothing waits
            logging.getLogger("autotune.daemon").info("line %d of %s", number, "x" * 100)
        while True:
            try:
                os.read(reader, 1 << 16)
            except BlockingIOError:
                break
        logging.getLogger("autotune.daemon").info("the next line")
        said = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert re.search(r"the next line \(\d+ lines before it were dropped: nobody read them\)\n", said)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_column_vanishes_on_a_narrow_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    columns = [f"COLUMN{number}" for number in range(7)]
    monkeypatch.setattr("sys.stdout", screen)
    for name, value in (("COLUMNS", "20"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    show(render.table(columns, [["net"] * 7]))
    head, row = screen.getvalue().splitlines()
    assert head.split() == columns and row.split() == ["net"] * 7


def test_in_a_pipe_each_step_is_a_line_with_the_time_that_has_passed(capsys: pytest.CaptureFixture[str]) -> None:
    with steps(lines=True) as step:
        step("step 1 of 2: compiling")
    with steps(quiet=True, lines=True) as step:
        step("hidden")
    with steps() as step:
        step("hidden")
    assert capsys.readouterr().err == "    0s  step 1 of 2: compiling\n"


def test_on_a_terminal_a_step_stands_beside_the_time_that_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with steps() as step:
        step("step 1 of 2: compiling [all] of it")
    assert "0s step 1 of 2: compiling [all] of it" in screen.getvalue()
