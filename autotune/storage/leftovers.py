"""Delete what killed processes left: temporary files and folders, and jobs half written or half removed."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from autotune.storage.atomic import LEFTOVER_AGE_S, TEMPORARY_PREFIX, remove_temporaries
from autotune.storage.identity import runs
from autotune.storage.paths import Workspace
from autotune.storage.scratch import remove_old_scratch
from autotune.storage.trees import discard_tree

_LOG = logging.getLogger("autotune.daemon")


def leftovers(workspace: Workspace, lock_folder: Path) -> Iterator[list[Path]]:
    """Delete leftovers, and yield what was deleted of each folder, one folder after the other.

    What cannot be deleted stays. Those in the workspace are over an hour old. Temporary folders outside of it have not
    changed for a day.
    """
    for folder in itertools.chain([lock_folder], _folders(workspace)):
        yield _noted(remove_temporaries(folder))
    for folder in workspace.jobs.glob(workspace.incoming("*").name):
        with contextlib.suppress(OSError):
            if abandoned(folder) and discard_tree(folder):
                yield _noted([folder])
    yield _noted(remove_old_scratch())


def _noted(deleted: list[Path]) -> list[Path]:
    for path in deleted:
        _LOG.info("deleted %s, which a killed process left", path)
    return deleted


def abandoned(folder: Path) -> bool:
    """Return whether a half-written job is over an hour old and its writer does not run any more.

    The age is not enough: the clock may have been set forward during a submission.

    Raises:
        OSError: The folder cannot be looked at.
    """
    pid = folder.name.split("-")[1]
    return time.time() - folder.stat().st_mtime > LEFTOVER_AGE_S and not (pid.isdecimal() and runs(int(pid)))


def temporaries(workspace: Workspace) -> Iterator[Path]:
    """Yield everything with a temporary name, of any age, also if somebody still writes it."""
    for folder in _folders(workspace):
        yield from sorted(folder.glob(f"{TEMPORARY_PREFIX}*"))
    yield from sorted(workspace.jobs.glob(workspace.incoming("*").name))


def _folders(workspace: Workspace) -> Iterator[Path]:
    """Yield every folder in which files are published, but for those that links lead to."""
    yield from (workspace.jobs, workspace.logs)
    yield from (folder for folder in (workspace.objects,) if not os.path.islink(folder))
    for job in workspace.job_list():
        yield from (folder for folder in (job.folder, job.tasks, job.stages) if not os.path.islink(folder))
    yield from (folder for folder in workspace.tuning_folders() if not os.path.islink(folder))
