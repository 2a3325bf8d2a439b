"""The tree of errors: what a command's exit code is, and how a disk's refusal reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from autotune import errors
from autotune.errors import ModelError, clipped, first_line, one_line, printable, ran_out_of_memory


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("AutotuneError", 1),
        ("BadInput", 2),
        ("ConfigError", 2),
        ("ModelError", 2),
        ("UnknownJob", 2),
        ("BadTarget", 2),
        ("BadState", 2),
        ("StorageError", 1),
        ("DamagedFile", 1),
        ("NewerFormat", 1),
        ("DiskProblem", 1),
        ("WorkerError", 1),
        ("WorkerCrashed", 1),
        ("StageTimeout", 1),
        ("VerificationError", 1),
        ("UnsupportedVersion", 1),
        ("DaemonRunning", 75),
        ("TimedOut", 124),
    ],
)
def test_exit_code_of_each_error(name: str, exit_code: int) -> None:
    assert getattr(errors, name)("message").exit_code == exit_code


def test_every_error_is_an_autotune_error_and_drawn_in_the_tree() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if name != "disk_problem"]
    assert all(issubclass(kind, errors.AutotuneError) for kind in classes)
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in classes if kind.__name__ not in errors.__doc__] == []


def test_a_refusal_of_the_disk_is_one_line_and_usual_ones_come_with_advice() -> None:
    def told(number: int) -> str:
        return str(errors.disk_problem("write", Path("x/state.json"), OSError(number, os.strerror(number))))

    assert told(errno.ENOSPC) == "cannot write x/state.json: no space left on device; free some space and try again"
    for number in (errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG):
        assert "; " in told(number)
    assert told(errno.EIO) == "cannot write x/state.json: input/output error"
    assert str(errors.disk_problem("read", "x", OSError())) == "cannot read x: no reason given"


def test_what_a_terminal_would_obey_is_shown_as_a_question_mark() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\x9bm\udc80") == "a?[2Jb?\n\tc?m?"
    assert one_line("  two\nlines \x1b]0;title\x07 ") == "two lines ?]0;title?"


def test_the_first_line_of_an_exception_is_short_and_without_a_message_its_type() -> None:
    assert first_line(ValueError("\n  no such option\nTraceback")) == "no such option"
    assert first_line(MemoryError()) == "MemoryError"
    assert first_line(ValueError("x" * 300)) == "x" * 300
    assert first_line(ValueError("a" * 2500 + "z" * 2500)) == "a" * 150 + " ... " + "z" * 150


def test_want_of_memory_is_known_through_the_errors_that_it_was_turned_into() -> None:
    def turned(error: Exception, *, told: bool = True) -> Exception:
        try:
            try:
                raise error
            except Exception as before:
                raise ModelError("cannot import net.onnx") from (before if told else None)
        except ModelError as after:
            return after

    assert ran_out_of_memory(MemoryError()) and ran_out_of_memory(turned(MemoryError()))
    assert ran_out_of_memory(turned(RuntimeError("std::bad_alloc")))
    assert not ran_out_of_memory(turned(ValueError("no such axis")))
    assert not ran_out_of_memory(turned(MemoryError(), told=False)) and not ran_out_of_memory(None)


def test_of_a_long_text_the_ends_stay() -> None:
    assert clipped("x" * 400) == "x" * 400
    text = clipped("cannot import " + "x" * 5000 + "; give it another name")
    assert text.startswith("cannot import x") and text.endswith("x; give it another name") and len(text) < 410
