"""Read a space file, `SPACE.toml` or `SPACE.json`, with the files of the user's that it names.

A space in T1 says what is tuned, not by which commands. They stand in an object `Autotune` of the same file, with the
keys of a `SPACE.toml`; or a `SPACE.toml` names it as `t1`.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune import schema
from autotune.command_jobs.combinations import Combinations
from autotune.command_jobs.definition import Build, Check, Definition, File, Machine, Measure, Megabytes, Parameters
from autotune.command_jobs.t1 import configuration_space
from autotune.errors import BadInput, ConfigError, InvalidData, StorageError, disk_problem
from autotune.metric import Metric
from autotune.regular_file import open_regular, read_regular
from autotune.storage import formats
from autotune.storage.paths import FILES
from autotune.toml_file import MAX_BYTES, read_tables

_COMMANDS = "Autotune"  # the object of a file in T1 that has the rest of what a SPACE.toml has
_PATH = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*")
_MAX_FILES = 1000
_MAX_PATH_LENGTH = 240  # characters
_MAX_FILES_BYTES = 1 << 30
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpaceFile:
    """The keys of a `SPACE.toml`; see `Definition`. `t1` is a file with the parameters and conditions."""

    measure: Measure
    parameters: Parameters = field(default_factory=dict)
    restrictions: tuple[str, ...] = ()
    t1: str = ""
    build: Build | None = None
    check: Check | None = None
    metric: Metric = field(default_factory=Metric)
    machine: Machine = field(default_factory=Machine)
    environment: dict[str, str] = field(default_factory=dict)
    disk_mb: Megabytes = Definition.disk_mb
    files: tuple[str, ...] = ()


def read_space(path: Path) -> tuple[Definition, Path]:
    """Read a space file and look at the files that it names.

    Returns:
        The space, and the folder that its files are in.

    Raises:
        BadInput: Something in it is wrong. The message names the file, and of TOML the line.
        DiskProblem: A file cannot be read.
    """
    _check_size(path)
    if path.suffix == ".json":
        try:
            return _of_json(path)
        except InvalidData as error:
            raise BadInput(f"{path}: {error}") from None
    with read_tables(SpaceFile, path, "the space") as (space, _):
        if space.t1:
            if space.parameters or space.restrictions:
                raise InvalidData("the parameters are in the file that 't1' names; leave out others", ("t1",))
            parameters, restrictions = _space_of(path.parent / space.t1)
            space = replace(space, parameters=parameters, restrictions=restrictions)
        return _definition(space, path.parent), path.parent


def _check_size(path: Path) -> None:
    try:
        if not path.is_file():
            raise BadInput(f"{path} is no file" if path.exists() else f"there is no file {path}")
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is larger than {MAX_BYTES >> 20} MiB; a space file has a few lines")
    except OSError as error:
        raise disk_problem("read", path, error) from error


def _of_json(path: Path) -> tuple[Definition, Path]:
    """Read T1 with commands, or the copy of a space that a job has."""
    document = _json(path)
    if document.get("format") == Definition.FORMAT[0]:
        try:
            definition = formats.read(Definition, path)
        except StorageError as error:
            raise BadInput(str(error)) from None
        definition.check_itself()
        return definition, path.parent / FILES
    return _of_t1(path, document), path.parent


def _of_t1(path: Path, document: Mapping[str, Any]) -> Definition:
    parameters, restrictions = configuration_space(document)
    if _COMMANDS not in document:
        raise InvalidData(
            f'T1 has no commands; add an object "{_COMMANDS}" with "measure", or write a SPACE.toml with'
            f' t1 = "{path.name}" and [measure]'
        )
    keys = (_COMMANDS,)
    space = schema.convert(SpaceFile, document[_COMMANDS], exact=True, keys=keys)
    if space.parameters or space.restrictions or space.t1:
        raise InvalidData(f"{_COMMANDS!r} has commands only: the parameters are in 'ConfigurationSpace'", keys)
    return _definition(replace(space, parameters=parameters, restrictions=restrictions), path.parent)


def _space_of(path: Path) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    try:
        _check_size(path)
        return configuration_space(_json(path))
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}", ("t1",)) from None
    except BadInput as error:
        raise InvalidData(str(error), ("t1",)) from None


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = schema.parsed_json(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise disk_problem("read", path, error) from error
    except InvalidData as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise InvalidData("it is not an object in T1, with a 'ConfigurationSpace'")
    return document


def _definition(space: SpaceFile, folder: Path) -> Definition:
    values = {name: getattr(space, name) for name in vars(space) if name not in ("t1", "files")}
    wanted = [*space.files, *([space.check.output] if space.check and space.check.output else [])]
    definition = Definition(**values, files=_files(folder, dict.fromkeys(wanted)))
    definition.check_itself()
    Combinations(definition).check()
    return definition


def _files(folder: Path, names: Mapping[str, None]) -> dict[str, File]:
    if len(names) > _MAX_FILES:
        raise InvalidData(f"there are more than {_MAX_FILES} files", ("files",))
    files: dict[str, File] = {}
    left = _MAX_FILES_BYTES
    for name in names:
        if len(name) > _MAX_PATH_LENGTH or not _PATH.fullmatch(name):
            raise InvalidData(f"{name[:60]!r} is no path below the folder of the space file", ("files",))
        files[name] = _file(folder / name)
        left -= files[name].size
        if left < 0:
            raise InvalidData("its files are larger than 1 GiB together", ("files",))
    return files


def _file(path: Path) -> File:
    try:
        if not path.is_file():
            raise InvalidData(f"{path} is no file" if path.exists() else f"there is no file {path}", ("files",))
        if path.stat().st_size > _MAX_FILES_BYTES:
            raise InvalidData(f"{path} is larger than 1 GiB", ("files",))
        whole = hashlib.sha256()
        size = 0
        crc32 = 0
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK):
                whole.update(chunk)
                crc32 = zlib.crc32(chunk, crc32)
                size += len(chunk)
        return File(size, crc32, whole.hexdigest(), os.access(path, os.X_OK))
    except OSError as error:
        raise disk_problem("read", path, error) from error
