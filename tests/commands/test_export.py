"""What `export --source` refuses before it compiles anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.commands.export import export
from autotune.config import Config
from autotune.errors import BadInput
from autotune.storage.paths import JobPaths, Workspace


def test_a_gpu_has_no_source(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    with pytest.raises(BadInput, match="^--source is for the CPUs of this machine; 0001-net was tuned for cuda$"):
        export(workspace, Config(), make_job(target="cuda"), workspace.root / "out", print, source=True)
    assert not (workspace.root / "out").exists()


def test_source_that_the_user_has_edited_is_not_written_over(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    mine = workspace.root / "out" / "source" / "network.cpp"
    mine.parent.mkdir(parents=True)
    mine.write_text("edited")
    with pytest.raises(BadInput, match=r"out/source/network.cpp was edited .*; give a new folder"):
        export(workspace, Config(), make_job(), workspace.root / "out", print, source=True)
    assert mine.read_text() == "edited"
