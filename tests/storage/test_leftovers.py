"""What killed processes left is swept, once nobody can be at it any more."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.storage.leftovers import leftovers, temporaries
from autotune.storage.paths import JobPaths, Workspace


@pytest.fixture(autouse=True)
def no_litter_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder for temporary files is empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def leave(path: Path, hours: float, folder: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        path.mkdir()
        (path / "spec.json").touch()
    else:
        path.touch()
    os.utime(path, (time.time() - hours * 3600,) * 2)
    return path


def everywhere(workspace: Workspace, job: JobPaths, hours: float) -> set[Path]:
    folders = [workspace.jobs, workspace.logs, job.folder, job.tasks, job.stages, workspace.logs / "tuning" / "llvm"]
    left = {leave(folder / f".tmp-1-{hours}", hours) for folder in folders}
    return left | {leave(workspace.incoming(f"4194303-{hours}"), hours, folder=True)}


def test_old_litter_goes_and_young_litter_stays(
    workspace: Workspace, make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    job = make_job()
    old = everywhere(workspace, job, 1.1)
    young = everywhere(workspace, job, 0.9)
    lock = leave(tmp_path / "locks" / ".tmp-1-a", 1.1)
    assert set(temporaries(workspace)) == old | young
    assert set(itertools.chain(*leftovers(workspace, tmp_path / "locks"))) == old | {lock}
    assert set(temporaries(workspace)) == young


def test_what_is_published_stays(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    job = make_job()
    for path in (job.folder, job.spec, job.stage(0, 0)):
        os.utime(path, (0, 0))
    assert [*itertools.chain(*leftovers(workspace, workspace.root / "none"))] == []
    assert job.spec.exists() and job.stage(0, 0).exists()
