"""Find the workspace and the jobs that a user means: `7`, `3,5-8`, a name, `last`, `all`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import BadInput, UnknownJob
from autotune.storage.paths import JobPaths, Workspace

_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def open_workspace(folder: Path) -> Workspace:
    """Return the workspace in a folder.

    Raises:
        BadInput: It is not a folder, or was deleted.
    """
    try:
        folder.absolute()
    except FileNotFoundError:
        raise BadInput("the current folder was deleted; change to another one, or give --workspace DIR") from None
    if folder.is_dir():
        return Workspace(folder)
    if folder.exists():
        raise BadInput(f"the workspace {folder} is not a folder")
    raise BadInput(f"there is no workspace {folder}; make the folder with: mkdir -p {shlex.quote(str(folder))}")


def select(workspace: Workspace, words: Sequence[str]) -> list[JobPaths]:
    """Return the jobs that the words mean, each once, in the order of their ids.

    Args:
        workspace: Where the jobs are.
        words: What the user wrote.

    Raises:
        UnknownJob: A word means no job. The message says which jobs there are.
    """
    jobs = workspace.job_list()
    chosen = {
        job.id: job for word in words for part in word.split(",") for job in _named(workspace, jobs, part.strip())
    }
    return [chosen[id] for id in sorted(chosen)]


def select_one(workspace: Workspace, word: str) -> JobPaths:
    """Return the only job that a word means.

    Args:
        workspace: Where the jobs are.
        word: What the user wrote.

    Raises:
        UnknownJob: It means no job or several.
    """
    jobs = select(workspace, [word])
    if len(jobs) != 1:
        raise UnknownJob(f"{word!r} names {len(jobs)} jobs; give one")
    return jobs[0]


def _named(workspace: Workspace, jobs: list[JobPaths], word: str) -> list[JobPaths]:
    if word == "all":
        return jobs
    if word == "last":
        chosen = jobs[-1:]
    elif _NUMBER.fullmatch(word):
        chosen = [job for job in jobs if job.id == int(word)]
    elif match := _RANGE.fullmatch(word):
        chosen = [job for job in jobs if int(match[1]) <= job.id <= int(match[2])]
    else:
        chosen = [job for job in jobs if job.name == word]
    if not chosen:
        raise UnknownJob(f"no job {word!r} here: {_existing(jobs) or no_jobs(workspace)}")
    return chosen


def no_jobs(workspace: Workspace) -> str:
    """Return what to tell a user whose queue is empty, who may be in another folder than they think."""
    folder = workspace.root.absolute()
    return f"the queue of {folder} is empty; `autotune submit MODEL` adds a job, --workspace DIR looks elsewhere"


def _existing(jobs: list[JobPaths]) -> str:
    if not jobs:
        return ""
    shown = ", ".join(f"{job.id} ({job.name})" for job in jobs[-5:])
    return f"there {'is' if len(jobs) == 1 else 'are'} {'... ' if len(jobs) > 5 else ''}{shown}"
