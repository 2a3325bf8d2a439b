"""Delete what killed processes left in a workspace: temporary files, and jobs half written or half removed."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from autotune.storage.atomic import LEFTOVER_AGE_S, TEMPORARY_PREFIX, remove_temporaries
from autotune.storage.identity import runs
from autotune.storage.paths import Workspace

_LOG = logging.getLogger("autotune.daemon")


def sweep(workspace: Workspace, lock_folder: Path) -> list[Path]:
    """Delete litter that is over an hour old, and name it. Never raises; what cannot be deleted stays."""
    folders = [lock_folder, *_folders(workspace)]
    swept = [path for folder in folders for path in remove_temporaries(folder)]
    for folder in workspace.jobs.glob(workspace.incoming("*").name):
        with contextlib.suppress(OSError):
            if abandoned(folder):
                shutil.rmtree(folder)
                swept.append(folder)
    for path in swept:
        _LOG.info("swept %s, which a killed process left", path)
    return swept


def abandoned(folder: Path) -> bool:
    """Whether a half-written job is over an hour old, and its writer gone.

    Both, as the clock may have been put forward while a submission runs. Raises ``OSError``.
    """
    return time.time() - folder.stat().st_mtime > LEFTOVER_AGE_S and not _runs(folder.name.split("-")[1])


def _runs(pid: str) -> bool:
    return pid.isdecimal() and runs(int(pid))


def litter(workspace: Workspace) -> Iterator[Path]:
    """Everything with a temporary name, of any age, whoever writes it."""
    for folder in _folders(workspace):
        yield from sorted(folder.glob(f"{TEMPORARY_PREFIX}*"))
    yield from sorted(workspace.jobs.glob(workspace.incoming("*").name))


def _folders(workspace: Workspace) -> Iterator[Path]:
    """Every folder in which files are published."""
    yield from (workspace.jobs, workspace.logs)
    for job in workspace.job_list():
        yield from (job.folder, job.tasks, job.stages)
    yield from workspace.logs.glob("tuning/*")
