"""Trials that travel between workspaces are judged: a lost one, a doubled one and a torn file are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import sharing
from typer.testing import CliRunner

from autotune.cli import app
from autotune.storage.paths import Workspace


@pytest.fixture
def both(tmp_path: Path) -> tuple[Workspace, Workspace]:
    first = Workspace(tmp_path / "first")
    second = Workspace(tmp_path / "second")
    for workspace in (first, second):
        workspace.root.mkdir()
    sharing.prepare(first, second)
    return first, second


def test_after_all_commands_each_trial_is_in_both_once(both: tuple[Workspace, Workspace], tmp_path: Path) -> None:
    file = tmp_path / "trials.gz"
    for words in sharing.commands(*both, file):
        assert sharing.losses(*both), "not all of them have run"
        assert CliRunner().invoke(app, words).exit_code == 0
    assert sharing.losses(*both) == sharing.torn(file) == []


def test_a_lost_and_a_doubled_trial_are_noticed(both: tuple[Workspace, Workspace], tmp_path: Path) -> None:
    for words in sharing.commands(*both, tmp_path / "trials.gz"):
        CliRunner().invoke(app, words)
    log = next(path for path in both[0].logs.glob("tuning/*/*.jsonl") if ".claimed" in path.parent.name)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:-2], lines[1], lines[-1]]))
    losses = sharing.losses(*both)
    assert [line.rpartition(" ")[2] for line in losses] == ["lost", "many"]


def test_a_torn_file_is_noticed(both: tuple[Workspace, Workspace], tmp_path: Path) -> None:
    file = tmp_path / "trials.gz"
    assert sharing.torn(file) == []
    CliRunner().invoke(app, sharing.commands(*both, file)[0])
    file.write_bytes(file.read_bytes()[:-20])
    assert len(sharing.torn(file)) == 1
