"""Read TOML that users write, and name the line on which a fault is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autotune import schema
from autotune.errors import ConfigError, InvalidData, UnknownKey, WrongValue, disk_problem
from autotune.regular_file import open_regular

__all__ = ["line_of", "name_lines", "parse", "read_tables", "section"]

T = TypeVar("T")
# A statement over several lines ends with a bracket or with quotes.
_ENDING = re.compile(r"""([\]}]|"{3}|'{3})\s*(#.*)?$""")
_MOST_BYTES = 2 << 20  # of a file that users write
_MOST_PARSED = 1 << 20  # characters of statements that do not end where they might


def parse(path: Path, data: bytes) -> tuple[dict[str, Any], str]:
    """Parse a TOML file.

    Args:
        path: The file, for error messages.
        data: What was read from it.

    Returns:
        The document, and the text it was parsed from.

    Raises:
        ConfigError: The file is not UTF-8 or not TOML. The message names the file and the line.
    """
    import tomli

    try:
        text = data.decode("utf-8")
        return tomli.loads(text), text
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error
    except tomli.TOMLDecodeError as error:
        fault = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ConfigError(f"{path}:{error.lineno}: {fault}") from error
    except RecursionError:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply") from None


@contextmanager
def read_tables(kind: type[T], path: Path, name: str) -> Iterator[tuple[T, dict[str, Any]]]:
    """Read a file whose tables are dataclasses, and name the line of what the block finds wrong with it.

    Args:
        kind: The dataclass of the whole file. Keys that it does not have are refused.
        path: The file.
        name: What users call the file, such as `the suite`.

    Yields:
        The file as `kind`, and the document that it was made of.

    Raises:
        ConfigError: The file is wrong, or the block raised `InvalidData`. The message names the file and the line.
        DiskProblem: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise disk_problem("read", path, error) from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path}: {name} has more than {_MOST_BYTES >> 20} MiB, which no such file needs")
    document, text = parse(path, data)
    with name_lines(path, text, partial(_words, name)):
        yield schema.convert(kind, document, exact=True, table="a table"), document


def _words(name: str, error: InvalidData) -> str:
    """Say what is wrong with a file, and where in it."""
    if not isinstance(error, UnknownKey | WrongValue):
        return str(error)
    *parents, key = error.keys
    place = section(parents) if isinstance(key, str) and parents else name
    if isinstance(error, UnknownKey):
        return f"unknown key {key!r} in {place}; there are {', '.join(error.known)}"
    subject = f"entry {key + 1} of {parents[-1]!r}" if isinstance(key, int) else repr(key)
    return f"{subject} in {place} must be {error.expected}, not {error.value!r}"


@contextmanager
def name_lines(path: Path, text: str, words: Callable[[InvalidData], str]) -> Iterator[None]:
    """Turn `InvalidData` into an error that names the file and the line.

    Args:
        path: The file that `text` was read from.
        text: The whole file.
        words: Says in one line what is wrong.

    Raises:
        ConfigError: The block raised `InvalidData`.
    """
    try:
        yield
    except InvalidData as error:
        raise ConfigError(f"{path}:{line_of(text, error.keys)}: {words(error)}") from None


def section(keys: Sequence[str | int]) -> str:
    """Return the header of the section that keys lead to, such as `[machine.devices]`. Indices are left out."""
    return f"[{'.'.join(key for key in keys if isinstance(key, str))}]"


def line_of(text: str, keys: Sequence[str | int]) -> int:
    """Find the line on which a value begins.

    TOML parsers do not say where a value was. So each statement is parsed for itself: the header of a table, or a key
    with its value, which may go over many lines.

    Args:
        text: A whole TOML file.
        keys: The keys of tables and indices of arrays that lead to the value.

    Returns:
        The number of the line; the first line is 1. Where a statement has very many lines, it may be an earlier one.
    """
    table: list[str | int] = []
    counts: dict[tuple[str | int, ...], int] = {}
    begin = 1
    if not keys:
        return begin
    for begin, statement, document in _statements(text):
        if statement.startswith("["):
            table = _table(document, counts)
            if table[: len(keys)] == list(keys):
                return begin
        elif keys[: len(table)] == tuple(table) and _has(document, keys[len(table) :]):
            return begin
    return begin


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield each statement of a TOML file with the number of its first line, and what it says alone."""
    import tomli

    left = _MOST_PARSED + 2 * len(text)
    begin = 1
    lines: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        lines.append(line)
        if len(lines) > 1 and not _ENDING.search(line):
            continue
        statement = "\n".join(lines).strip()
        left -= len(statement)
        try:
            document = tomli.loads(statement) if left > 0 else None
        except tomli.TOMLDecodeError:
            continue
        if document is None:
            return
        if document:
            yield begin, statement, document
        begin = number + 1
        lines = []


def _table(document: Any, counts: dict[tuple[str | int, ...], int]) -> list[str | int]:
    """Return the keys that lead to the table of a header. `counts` has the number of tables in each array so far."""
    path: list[str | int] = []
    while document:
        (key,) = document
        document = document[key]
        path.append(key)
        place = tuple(path)
        if isinstance(document, list):
            counts[place] = counts.get(place, 0) + 1
            document = None
        if place in counts:
            path.append(counts[place] - 1)
    return path


def _has(document: Any, keys: Sequence[str | int]) -> bool:
    for key in keys:
        if isinstance(key, int):
            if not isinstance(document, list) or key >= len(document):
                return False
        elif not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
