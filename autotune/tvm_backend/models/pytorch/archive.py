"""The archive that `torch.export.save` writes, read as data.

torch's own loader unpickles the example inputs and each weight that is no plain tensor. So a file is never given to it
as submitted: a copy is, with the checked program and the plain weights, and without everything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import ModelError, disk_problem, first_line
from autotune.schema import convert

_PROGRAM = "models/model.json"
_WEIGHTS = "data/weights/"
_WEIGHTS_TABLE = f"{_WEIGHTS}model_weights_config.json"
_CONSTANTS = "data/constants/"
_CONSTANTS_TABLE = f"{_CONSTANTS}model_constants_config.json"
_EXAMPLES = "data/sample_inputs/model.pt"
_SMALL = ("archive_format", "archive_version", "byteorder", ".data/version")
_OLD = "serialized_exported_program.json"
_PICKLES = ("data.pkl", "constants.pkl")
_ADVICE = "autotune unpickles nothing: write the model with torch.export.save"
_PLAIN = re.compile(r"(weight|tensor)_\d+")


@dataclass(frozen=True)
class _Payload:
    """What a table says of a tensor."""

    path_name: str
    use_pickle: bool
    tensor_meta: dict[str, Any] | None


@dataclass(frozen=True)
class _Table:
    """A table of tensors, by their names."""

    config: dict[str, _Payload]


@dataclass(frozen=True)
class Archive:
    """An archive of one program.

    Attributes:
        root: The folder in the archive that holds everything, with a slash at the end.
        program: The program, as torch's schema has it.
        tables: What `data/weights` and `data/constants` say of each tensor, by the name of the member.
    """

    path: Path
    root: str
    program: dict[str, Any]
    tables: Mapping[str, dict[str, Any]]


def is_archive(path: Path) -> bool:
    """Return whether a file is a ZIP archive as PyTorch writes them. Its name does not matter."""
    try:
        with zipfile.ZipFile(path) as opened:
            return any(name.rpartition("/")[2] in ("archive_format", _OLD, *_PICKLES) for name in opened.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):  # ValueError: names that are not Unicode
        return False


def read_archive(path: Path) -> Archive:
    """Read the program of an archive. No weights are read.

    Raises:
        ModelError: The archive is damaged, holds no program or several, or has something that would be unpickled.
    """
    try:
        with zipfile.ZipFile(path) as opened:
            _check_sizes(path, opened.infolist())
            root = _root(path, opened.namelist())
            program = _json(opened, root + _PROGRAM)
            tables = {name: _json(opened, root + name) for name in (_WEIGHTS_TABLE, _CONSTANTS_TABLE)}
            payloads = [convert(_Table, table).config for table in tables.values()]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"{path} is a damaged archive of PyTorch: {first_line(error)}") from error
    for tensors in payloads:
        _check_plain(path, tensors)
    return Archive(path, root, program, tables)


def write_archive(archive: Archive, program: Mapping[str, Any], to: Path) -> None:
    """Write an archive with another program: its plain weights, and nothing that would be unpickled.

    Raises:
        DiskProblem: The file cannot be written.
        ModelError: A weight is not in the archive, or is damaged.
    """
    texts = {_PROGRAM: program, **archive.tables}
    payloads = [
        folder + str(item["path_name"])
        for folder, table in ((_WEIGHTS, _WEIGHTS_TABLE), (_CONSTANTS, _CONSTANTS_TABLE))
        for item in archive.tables[table]["config"].values()
    ]
    try:
        with zipfile.ZipFile(archive.path) as source, zipfile.ZipFile(to, "w") as target:
            present = set(source.namelist())
            for name in (*_SMALL, *dict.fromkeys(payloads)):
                if name in payloads or archive.root + name in present:
                    _copy(source, archive.root + name, target, f"model/{name}")
            for name, text in texts.items():
                target.writestr(f"model/{name}", json.dumps(text))
            target.writestr(f"model/{_EXAMPLES}", b"")
        with to.open("rb") as written:
            os.fsync(written.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"{archive.path} is a damaged archive of PyTorch: {error}") from error
    except OSError as error:
        raise disk_problem("write", to, error) from error


def _root(path: Path, members: list[str]) -> str:
    """The folder that holds everything."""
    programs = [name for name in members if "/models/" in f"/{name}" and name.endswith(".json")]
    if not programs:
        raise ModelError(f"{path} is not an exported program of torch 2.9 or later; {_ADVICE}")
    if len(programs) > 1 or not programs[0].endswith(_PROGRAM):
        raise ModelError(f"{path} has programs that torch.export.save does not write: {programs[0]}")
    return programs[0].removesuffix(_PROGRAM)


def _json(opened: zipfile.ZipFile, name: str) -> dict[str, Any]:
    table = json.loads(opened.read(name))
    if not isinstance(table, dict):
        raise ValueError(f"{name} is no table")
    return table


def _check_sizes(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Check that no more is read than the file holds: neither is anything compressed, nor in it twice."""
    if packed := [item.filename for item in members if item.compress_type != zipfile.ZIP_STORED]:
        raise ModelError(f"{path} has {packed[0]!r} compressed, as torch.export.save writes nothing; {_ADVICE}")
    if sum(item.file_size for item in members) > path.stat().st_size:
        raise ModelError(f"{path} is a damaged archive of PyTorch: its members are larger than it is")


def _check_plain(path: Path, tensors: Mapping[str, _Payload]) -> None:
    """Check that each tensor is plain numbers in a member of its own."""
    for name, item in tensors.items():
        if item.use_pickle or item.tensor_meta is None or not _PLAIN.fullmatch(item.path_name):
            raise ModelError(f"{path}: {name!r} is stored as a pickle; autotune unpickles nothing")


def _copy(source: zipfile.ZipFile, name: str, target: zipfile.ZipFile, to: str) -> None:
    size = source.getinfo(name).file_size
    with source.open(name) as reader, target.open(to, "w", force_zip64=size >= 2**31) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
