"""Remove jobs that have ended, or compiled kernels. Tuning logs stay, so later jobs start from their trials."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from autotune.commands.durations import parse_age
from autotune.commands.job_status import JobStatus, snapshot
from autotune.commands.jobs import select
from autotune.commands.terminal import JOBS_HELP, tell, workspace_of
from autotune.errors import BadInput, BadState, disk_problem
from autotune.storage import locks
from autotune.storage.job_files import is_in_use
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.leftovers import abandoned
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import check_ours
from autotune.storage.trees import discard_tree, remove_tree
from autotune.tvm_backend.export import ready_library

_TRASH = "removed-"


def clean(workspace: Workspace, older_than_s: float, named: Sequence[JobPaths] | None = None) -> list[JobPaths]:
    """Remove the jobs that ended at least `older_than_s` seconds ago, and what killed submissions left behind.

    Args:
        workspace: Where the jobs are.
        older_than_s: How long ago they ended at least.
        named: The only jobs to remove; None for all.

    Returns:
        The jobs that were removed.

    Raises:
        BadState: A named job has not ended, or is being exported. No job was removed.
        DiskProblem: A folder could not be removed, or somebody else can put folders among the jobs.
    """
    now = time.time()
    if not workspace.jobs.is_dir():
        return []
    check_ours(workspace.jobs)
    with locks.exclusive(workspace.queue_lock):
        jobs = snapshot(workspace)
        if named is not None:
            jobs = _ended(jobs, [paths.id for paths in named])
        ended = {job.id for job in jobs if _ended_for(job, older_than_s, now)}
        gone = [paths for paths in workspace.job_list() if paths.id in ended and not _is_kept(paths, named)]
        for paths in gone:
            _remove(workspace, paths)
        for folder in workspace.jobs.glob(workspace.incoming("*").name):
            if _abandoned(folder):
                discard_tree(folder)
    return gone


def _ended(jobs: Sequence[JobStatus], ids: Sequence[int]) -> list[JobStatus]:
    """Return the jobs with these ids, all of which must have ended."""
    ended = [job for job in jobs if job.id in ids]
    for job in ended:
        if not _ended_for(job, 0.0, time.time()):
            raise BadState(f"job {job.id} ({job.name}) has not ended; run `autotune cancel {job.id}` first")
    return ended


def _is_kept(paths: JobPaths, named: Sequence[JobPaths] | None) -> bool:
    """Return whether a job is being exported. Raises BadState if the user named it."""
    if not is_in_use(paths):
        return False
    if named is not None:
        raise BadState(f"job {paths.id} ({paths.folder.name}) is being exported; remove it when that is done")
    return True


def _abandoned(folder: Path) -> bool:
    """Return whether a folder was left behind by a killed submission or a killed `clean`."""
    try:
        return _TRASH in folder.name or abandoned(folder)
    except FileNotFoundError:  # a failed submission has just removed it
        return False


def _ended_for(job: JobStatus, seconds: float, now: float) -> bool:
    """Return whether a job ended at least so many seconds ago.

    A job whose files cannot be read is shown as failed, but it has not ended: a newer autotune may have written it.
    """
    if job.finished_at is None:
        return job.state == "cancelled" and seconds == 0
    # If the clock was set back, a job may have ended in the future. It counts as having ended just now.
    return job.ended and max(0.0, now - job.finished_at) >= seconds


def _remove(workspace: Workspace, paths: JobPaths) -> None:
    """Take a job out of the queue with one rename, and then delete its files."""
    trash = workspace.incoming(f"{_TRASH}{paths.folder.name}-{uuid4().hex[:8]}")
    try:
        os.rename(paths.folder, trash)
        remove_tree(trash)
    except OSError as error:
        raise disk_problem("remove", paths.folder, error) from error


def clean_objects(workspace: Workspace) -> int:
    """Remove the compiled kernels and libraries that are kept, and return how many bytes they had.

    Raises:
        DiskProblem: One could not be removed.
    """
    try:
        libraries = sum(map(ready_library.remove, workspace.job_list()))
        return libraries + KeptObjects(workspace.objects, 0).clear()
    except OSError as error:
        raise disk_problem("remove", workspace.objects, error) from error


def command(
    context: typer.Context,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help=f"Only these. {JOBS_HELP}")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Remove all jobs that have ended.")] = False,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Only jobs that ended at least this long ago: 7d, 12h.")
    ] = "",
    objects: Annotated[
        bool, typer.Option("--objects", help="Remove the compiled kernels and libraries that are kept.")
    ] = False,
) -> None:
    """Remove jobs that have ended. The tuning logs stay."""
    if not (jobs or finished or older_than or objects):
        raise BadInput("name jobs, or give --finished, --older-than 7d or --objects")
    age = parse_age(older_than) if older_than else 0.0
    workspace = workspace_of(context)
    if objects:
        tell(f"removed {clean_objects(workspace) / 1e6:.1f} MB of compiled kernels and libraries")
    if not (jobs or finished or older_than):
        return
    gone = clean(workspace, age, select(workspace, jobs) if jobs else None)
    tell(
        f"removed {len(gone)} job{'' if len(gone) == 1 else 's'}"
        + "".join(f"\n  {paths.folder.name}" for paths in gone)
    )
