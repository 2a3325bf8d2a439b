"""Read TOML that users write, and name the line on which a fault is."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autotune import schema
from autotune.errors import ConfigError, InvalidData, UnknownKey, WrongValue, clipped, disk_problem
from autotune.regular_file import read_regular

T = TypeVar("T")

MAX_BYTES = 2 << 20  # of a file that people write
_MAX_KEY_LENGTH = 60  # characters that are shown of it
_LONG_NUMBER = re.compile(rb"[0-9][0-9_]{4199,}")
# What begins, ends or hides a bracket or the end of a line.
_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""+|\'{3}.*?\'{3,}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[][{}\n]''', re.DOTALL
)
_MAX_BITS = 14_000  # of a number that Python reads and writes: it has at most 4,300 digits
_TOO_LARGE = "a whole number of more than 4,200 digits"


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
        document = tomli.loads(text)
    except ValueError as error:
        raise _refusal(path, data, error) from error
    except RecursionError:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply") from None
    with name_lines(path, text, str):
        _check_numbers(document)
    return document, text


def _refusal(path: Path, data: bytes, error: ValueError) -> ConfigError:
    """Say in one line what is wrong with a file that is no TOML."""
    import tomli

    if isinstance(error, UnicodeDecodeError):
        line = data[: error.start].count(b"\n") + 1
        return ConfigError(f"{path}:{line}: not UTF-8 text")
    if isinstance(error, tomli.TOMLDecodeError):
        return ConfigError(f"{path}:{error.lineno}: {error.msg[:1].lower()}{error.msg[1:]}")
    number = _LONG_NUMBER.search(data)  # which Python refuses to read, as that takes long
    line = data[: number.start() if number else 0].count(b"\n") + 1
    return ConfigError(f"{path}:{line}: there is {_TOO_LARGE}")


def _check_numbers(value: object, keys: tuple[str | int, ...] = ()) -> None:
    """Check that whole numbers can be written: hexadecimal ones are read whatever their length.

    Raises:
        InvalidData: One is too long. `keys` lead to it.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        name = next((key for key in reversed(keys) if isinstance(key, str)), "")
        raise InvalidData(f"{name[:_MAX_KEY_LENGTH]!r} has {_TOO_LARGE}", keys)
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(part, (*keys, key))


@contextmanager
def read_tables(
    kind: type[T], path: Path, name: str, upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Read a file whose tables are dataclasses, and name the line of what the block finds wrong with it.

    Args:
        kind: The dataclass of the whole file. Keys that it does not have are refused.
        name: What users call the file, such as `the suite`.
        upgrade: Makes a document of this version of one of an older version.

    Yields:
        The file as `kind`, and the document that it was made of.

    Raises:
        ConfigError: The file is wrong, or the block raised `InvalidData`. The message names the file and the line.
        DiskProblem: The file cannot be read.
    """
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise disk_problem("read", path, error) from error
    document, text = parse(path, data)
    if upgrade is not None:
        document = upgrade(document)
    with name_lines(path, text, partial(_words, name)):
        yield schema.convert(kind, document, exact=True, table="a table"), document


def _words(name: str, error: InvalidData) -> str:
    """Say what is wrong with a file, and where in it."""
    if not isinstance(error, UnknownKey | WrongValue):
        return str(error)
    *parents, key = error.keys
    place = section(parents) if isinstance(key, str) and parents else name
    if isinstance(error, UnknownKey):
        return f"unknown key {str(key)[:_MAX_KEY_LENGTH]!r} in {place}; there are {', '.join(error.known)}"
    subject = f"entry {key + 1} of {parents[-1]!r}" if isinstance(key, int) else repr(key)
    return f"{subject} in {place} must be {error.expected}, not {error.found}"


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
        raise ConfigError(f"{path}:{line_of(text, error.keys)}: {clipped(words(error))}") from None


def section(keys: Sequence[str | int]) -> str:
    """Return the header of the section that keys lead to, such as `[machine.devices]`. Indices are left out."""
    return f"[{'.'.join(key[:_MAX_KEY_LENGTH] for key in keys if isinstance(key, str))}]"


def line_of(text: str, keys: Sequence[str | int]) -> int:
    """Find the line on which a value begins.

    TOML parsers do not say where a value was. So the text is parsed up to the ends of some of its lines, until the
    first is found behind which it has the keys; the value began behind the one before.

    Args:
        text: A whole TOML file.
        keys: The keys of tables and indices of arrays that lead to the value.

    Returns:
        The number of the line; the first line is 1.
    """
    import tomli

    text = text.replace("\r\n", "\n")
    ends = _ends(text)

    def is_there(end: int) -> bool:
        return _has(tomli.loads(text[:end]), keys)

    place = bisect_left(ends, True, key=is_there)
    return text.count("\n", 0, ends[place - 1]) + 1 if place else 1


def _ends(text: str) -> list[int]:
    """Return the places behind the lines that end a key with its value, the head of a table, or nothing."""
    ends = list[int]()
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        elif token[0] == "\n" and depth == 0:
            ends.append(token.end())
    return [*ends, len(text)]


def _has(document: Any, keys: Sequence[str | int]) -> bool:
    for key in keys:
        if isinstance(key, int):
            if not isinstance(document, list) or key >= len(document):
                return False
        elif not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
