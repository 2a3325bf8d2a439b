"""What somebody else has put into a workspace is not run, and leads nowhere: nothing outside is written or deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.config import Config, load_config
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import AutotuneError, ConfigError, DiskProblem
from autotune.storage import formats
from autotune.storage.daemon_info import DaemonInfo
from autotune.storage.formats import JobState
from autotune.storage.identity import Identity
from autotune.storage.job_files import make_folder, orphaned_artifacts
from autotune.storage.journal import UserRequest, append
from autotune.storage.leftovers import leftovers
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import private_folder
from autotune.workers.worker_pool import shorten

OTHER = 12345
GIVES_AWAY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
Make = Callable[..., JobPaths]

SPACE = """[parameters]
a = [1, 2]
[measure]
command = ["echo", "{a}"]
number = "([0-9.]+)"
"""
COMMANDS = (
    ("submit", "space.toml"),
    ("daemon", "run", "--drain"),
    ("cancel", "1"),
    ("clean", "--finished"),
)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder outside of the workspace, with what a tidy daemon would delete."""
    folder = tmp_path / "elsewhere"
    (folder / "t000-r0007").mkdir(parents=True)
    (folder / ".tmp-1-ff").write_text("mine")
    (folder / "file").write_text("mine")
    os.utime(folder / ".tmp-1-ff", (0, 0))
    return folder


def untouched(folder: Path) -> bool:
    names = sorted(path.name for path in folder.iterdir())
    return names == [".tmp-1-ff", "file", "t000-r0007"] and (folder / "file").read_text() == "mine"


def said(workspace: Workspace, words: tuple[str, ...]) -> list[str]:
    """What a command that fails says."""
    (workspace.root / "space.toml").write_text(SPACE)
    command = [str(workspace.root / word) if word.endswith(".toml") else word for word in words]
    ended = subprocess.run(
        [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), *command], capture_output=True, text=True
    )
    assert ended.returncode
    return ended.stderr.splitlines()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_jobs_that_others_may_write_to_are_refused_in_a_line(
    workspace: Workspace, make_job: Make, words: tuple[str, ...]
) -> None:
    make_job(state=JobState("done", finished_at=1.0))
    workspace.jobs.chmod(0o777)
    assert said(workspace, words) == [
        f"autotune: others may write to {workspace.jobs}; run: chmod go-w {workspace.jobs}"
    ]
    assert len(workspace.job_list()) == 1


@GIVES_AWAY
@pytest.mark.parametrize("which", ["jobs", "logs"])
def test_a_folder_of_somebody_else_is_no_place_for_jobs(workspace: Workspace, which: str) -> None:
    os.chown(getattr(workspace, which), OTHER, -1)
    with pytest.raises(DiskProblem, match=f"belongs to user {OTHER}, who can put anything into it"):
        private_folder(getattr(workspace, which))


@GIVES_AWAY
@pytest.mark.parametrize("inside", [False, True])
def test_a_link_of_somebody_else_is_not_followed(workspace: Workspace, elsewhere: Path, inside: bool) -> None:
    link = workspace.tuning if inside else workspace.logs
    if not inside:
        link.rmdir()
    link.symlink_to(elsewhere)
    os.lchown(link, OTHER, -1)
    with pytest.raises(DiskProblem, match=f"is a link that user {OTHER} has made"):
        private_folder(workspace.logs)


def test_a_link_of_the_users_own_may_stand_for_the_folder_of_the_logs(workspace: Workspace, elsewhere: Path) -> None:
    workspace.logs.rmdir()
    workspace.logs.symlink_to(elsewhere)
    private_folder(workspace.logs)


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_settings_that_others_may_write_are_refused(workspace: Workspace, mode: int) -> None:
    workspace.config.chmod(mode)
    with pytest.raises(ConfigError, match=f"others may write to .*; run: chmod go-w {workspace.config}"):
        load_config(workspace.config)


@GIVES_AWAY
def test_settings_of_somebody_else_are_refused(workspace: Workspace) -> None:
    os.chown(workspace.config, OTHER, -1)
    with pytest.raises(ConfigError, match=f"belongs to user {OTHER}"):
        load_config(workspace.config)


@GIVES_AWAY
def test_settings_that_a_group_of_several_may_write_are_refused(workspace: Workspace) -> None:
    os.chown(workspace.config, -1, OTHER)
    workspace.config.chmod(0o664)
    with pytest.raises(ConfigError, match="others may write"):
        load_config(workspace.config)


@GIVES_AWAY
def test_a_job_of_somebody_else_is_not_served(workspace: Workspace, make_job: Make) -> None:
    job = make_job()
    os.chown(job.folder, OTHER, -1)
    with pytest.raises(DiskProblem, match=f"belongs to user {OTHER}, whose job only their own daemon may serve"):
        QueuedJob.open(workspace, job, Config())


def test_a_link_among_the_jobs_is_no_job(workspace: Workspace, make_job: Make, elsewhere: Path) -> None:
    job = make_job()
    os.rename(job.folder, elsewhere / "moved")
    job.folder.symlink_to(elsewhere / "moved")
    assert workspace.job_list() == []


def test_libraries_that_a_link_leads_to_are_nobodys_orphans(make_job: Make, elsewhere: Path) -> None:
    job = make_job()
    job.artifacts.symlink_to(elsewhere)
    assert orphaned_artifacts(job) == []


def test_a_link_in_the_place_of_a_jobs_folder_is_set_aside(make_job: Make, elsewhere: Path) -> None:
    job = make_job()
    job.artifacts.symlink_to(elsewhere)
    make_folder(job.artifacts)
    assert not job.artifacts.is_symlink() and job.artifacts.is_dir() and untouched(elsewhere)


def test_leftovers_are_not_looked_for_where_links_lead(workspace: Workspace, make_job: Make, elsewhere: Path) -> None:
    job = make_job()
    job.tasks.symlink_to(elsewhere)
    workspace.tuning.mkdir()
    (workspace.tuning / "llvm-x").symlink_to(elsewhere)
    list(leftovers(workspace, elsewhere.parent / "no-locks"))
    assert untouched(elsewhere)


def test_nothing_is_appended_to_or_cut_off_where_a_link_leads(
    workspace: Workspace, make_job: Make, elsewhere: Path
) -> None:
    job = make_job()
    log = elsewhere.parent / "journal.jsonl"
    append(log, UserRequest("hold"))
    with log.open("ab") as file:
        file.write(b"torn")
    kept = log.read_bytes()
    job.journal.symlink_to(log)
    with pytest.raises(AutotuneError, match="it is a symbolic link"):
        append(job.journal, UserRequest("hold"))
    printed = workspace.worker_log("cpu")
    printed.symlink_to(elsewhere / "file")
    shorten(printed, 1)
    assert log.read_bytes() == kept and untouched(elsewhere)


@GIVES_AWAY
def test_the_process_that_somebody_else_names_is_not_stopped(workspace: Workspace) -> None:
    formats.write(workspace.daemon_info, DaemonInfo(Identity.current().to_json(), 1.0, "fair"))
    os.chown(workspace.jobs, OTHER, -1)
    (line,) = said(workspace, ("daemon", "stop"))
    assert "belongs to user" in line
