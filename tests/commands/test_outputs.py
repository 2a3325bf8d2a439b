"""Commands that write a file where the user says leave alone what is there and is no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import _run
from autotune.storage.paths import JobPaths, Workspace

SCENARIO = "[machine]\ncpus = 1\n[[job]]\ndevice = 'cpu'\n"


@pytest.mark.parametrize(
    "words",
    [
        "trials export here.html",
        "report 1 --html here.html",
        "simulate scenario.toml --gantt here.html",
        "sweep suite.toml --html here.html",
    ],
)
def test_a_folder_keeps_its_place(
    workspace: Workspace,
    tuned: JobPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.toml").write_text(SCENARIO)
    (inside := Path("here.html") / "inside").parent.mkdir()
    inside.write_text("kept")
    assert _run(["--workspace", str(workspace.root), *words.split()]) == 2
    assert capsys.readouterr() == ("", "autotune: here.html exists and is not a file; give another path\n")
    assert inside.read_text() == "kept"


def test_a_folder_with_the_name_of_a_table_keeps_its_place(
    workspace: Workspace, tuned: JobPaths, tmp_path: Path
) -> None:
    (tmp_path / "tables" / "tasks.csv").mkdir(parents=True)
    assert _run(["--workspace", str(workspace.root), "report", "1", "--csv", str(tmp_path / "tables")]) == 2
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["tasks.csv"]
