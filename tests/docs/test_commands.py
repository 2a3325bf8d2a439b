"""Every command that the documentation shows exists, with these options and this number of arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from autotune.cli import app, hoist_workspace

from .conftest import PAGES, ROOT, commands, name

SHOWN = [
    pytest.param(command, id=f"{name(page)}: {command}")
    for page in PAGES
    if "reference/commands" not in name(page)
    for command in dict.fromkeys(commands(page))
]


def parse(words: list[str]) -> None:
    """Parse a command line of autotune without running it. Raises what the command line would complain of."""
    command: Any = typer.main.get_command(app)
    words = hoist_workspace(words)
    if words[0] == "--workspace":
        words = words[2:]
    while hasattr(command, "commands"):
        name, *words = words
        if name in ("--help", "--version"):
            return
        subcommand = (
            command.get_command(None, name) if hasattr(command, "list_commands") else command.commands.get(name)
        )
        assert subcommand is not None, f"no command {name}"
        command = subcommand
    with command.make_context("autotune", words, help_option_names=["-h", "--help"]):
        pass


def check(line: str) -> None:
    """Check a command line of a page."""
    line = re.sub(r"^\w+=\$\((.*)\)$", r"\1", line)
    line = re.split(r"\s[|>]|2>", line)[0]
    words = [word.strip("[]") for word in shlex.split(line)]
    if words[0] == "autotune":
        if "..." not in words and words[1].islower():
            parse(words[1:])
        return
    script = next((word for word in words[:2] if word.startswith("scripts/")), None)
    if script:
        source = (ROOT / script).read_text() + "".join(path.read_text() for path in (ROOT / "scripts").rglob("*.py"))
        missing = [word for word in words if re.match(r"--[a-z]", word) and f'"{word}"' not in source]
        assert not missing or script.endswith(".sh"), missing


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_exists(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(line)


@pytest.mark.parametrize("line", ["autotune frobnicate x.onnx", "autotune submit x.onnx --trails 3", "autotune export"])
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises(Exception, match="No such option|no command|Missing"):
        check(line)


def test_a_wrong_script_is_found() -> None:
    with pytest.raises(FileNotFoundError):
        check("python scripts/no_such.py")
    with pytest.raises(AssertionError, match="--nothing"):
        check("python scripts/models/make_models.py --nothing")


def test_there_are_commands() -> None:
    assert len(SHOWN) > 60
