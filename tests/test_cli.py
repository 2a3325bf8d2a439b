"""The table of verbs is what the verbs are, and `--help` reads nothing but the table."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from autotune import cli

LOADED = """
import json, sys
from autotune.cli import _run
code = _run(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(name for name in sys.modules if name.startswith("autotune.commands."))]))
"""
ALWAYS = {"autotune.commands.terminal"}


def modules_of(*words: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True, timeout=60)
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(names)


def test_every_verb_of_the_table_loads_and_shows_its_help() -> None:
    for name in cli.VERBS:
        result = CliRunner().invoke(cli.app, [name, "--help"])
        assert result.exit_code == 0
        assert f"autotune {name}" in result.output.replace("root", "autotune")


def test_help_lists_every_verb_and_loads_none_and_a_verb_its_own_file() -> None:
    text = CliRunner().invoke(cli.app, ["--help"]).output
    assert all(f" {name} " in text for name in cli.VERBS)
    assert modules_of("--help") == ALWAYS
    loaded = modules_of("wait", "--help")
    assert "autotune.commands.wait" in loaded and "autotune.commands.submit.submit" not in loaded


def test_an_unknown_verb_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._run(["submt"]) == 2
    assert "No such command 'submt'" in capsys.readouterr().err


def commands(command: Any) -> Iterator[Any]:
    yield command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name))


def test_help_shows_all_that_its_texts_say() -> None:
    every = list(commands(typer.main.get_command(cli.app)))
    texts = [text.help or "" for command in every for text in (command, *command.params) if hasattr(text, "help")]
    assert len(every) > len(cli.VERBS) and len(texts) > 100
    for text in texts:  # Rich takes [word] for a style and leaves it out
        assert Text.from_markup(text).plain == text


def test_the_status_of_an_empty_queue_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._run(["--workspace", str(tmp_path), "status"]) == 0
    shown = capsys.readouterr()
    assert "STATE" in shown.out and f"the queue of {tmp_path} is empty; `autotune submit MODEL`" in shown.err
    assert cli._run(["--workspace", str(tmp_path), "status", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_the_version_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._run(["--version"]) == 0
    assert capsys.readouterr().out == f"autotune {importlib.metadata.version('autotune-tvm')}\n"
