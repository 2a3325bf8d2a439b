"""A job's copy of a space and of its files. What another user could have written in it is never run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from autotune.command_jobs.definition import Definition
from autotune.errors import BadInput, DamagedFile, InvalidData, MachineProblem, disk_problem
from autotune.storage import formats
from autotune.storage.job_files import checksum, make_folder
from autotune.storage.paths import JobPaths
from autotune.storage.private_folders import distrust


def write_snapshot(paths: JobPaths, definition: Definition, source: Path) -> tuple[int, int]:
    """Write a space into the folder of a job, so that only its owner can change it.

    Args:
        source: The folder that the user's files are copied from.

    Returns:
        The size and the CRC-32 of the space, for the spec of the job.

    Raises:
        BadInput: A file has changed since the space was read.
        DiskProblem: A file could not be copied.
    """
    make_folder(paths.files)
    for name, file in definition.files.items():
        copy = paths.files / name
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, copy)
            copy.chmod(0o500 if file.executable else 0o400)
            if checksum(copy) != (file.size, file.crc32):
                raise BadInput(f"{source / name} has changed while it was read; submit it again")
        except OSError as error:
            raise disk_problem("copy", source / name, error) from error
    formats.write(paths.space, definition)
    for path in (paths.folder, *dict.fromkeys(_parts(paths, definition)), paths.space):
        path.chmod(path.stat().st_mode & ~0o022)
    return checksum(paths.space)


def read_snapshot(paths: JobPaths) -> Definition:
    """Read the space of a job, which is about to run commands of it.

    Raises:
        MachineProblem: Another user owns a part of it, or may write to it.
        DamagedFile: It is not what was written.
    """
    for path in (paths.folder, paths.space):
        _check_trust(path)
    try:
        definition = formats.read(Definition, paths.space)
        definition.check_itself()
    except FileNotFoundError:
        raise DamagedFile(f"{paths.space} is missing; submit the space again: its trials stay known") from None
    except InvalidData as error:
        raise DamagedFile(f"{paths.space} is damaged: {error}") from None
    return definition


def check_files(paths: JobPaths, definition: Definition) -> None:
    """Check that the copies of the user's files are as they were submitted, and the user's alone.

    Raises:
        MachineProblem: Another user owns one of them or may write to it.
        DamagedFile: One is missing or has changed.
    """
    for path in _parts(paths, definition):
        _check_trust(path)
    for name, file in definition.files.items():
        try:
            intact = checksum(paths.files / name) == (file.size, file.crc32)
        except OSError:
            intact = False
        if not intact:
            raise DamagedFile(f"{paths.files / name} is missing or damaged; submit the space again")


def _parts(paths: JobPaths, definition: Definition) -> Iterator[Path]:
    """Yield the folder of the files, the folders in it, and the files."""
    yield paths.files
    for name in definition.files:
        path = paths.files / name
        yield from (parent for parent in path.parents if paths.files in parent.parents)
        yield path


def _check_trust(path: Path) -> None:
    try:
        refused = distrust(path)
    except OSError:
        return  # who reads it says that it is missing
    if refused:
        raise MachineProblem(f"its commands are not run: {refused}")
