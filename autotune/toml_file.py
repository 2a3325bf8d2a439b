"""What settings and scenarios have in common: TOML, and the line on which a fault is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.errors import ConfigError


class Wrong(Exception):
    """A fault, and the keys (of tables) and numbers (of entries) that lead to it."""

    def __init__(self, keys: tuple[str | int, ...], fault: str) -> None:
        super().__init__(fault)
        self.keys = keys


def parse(path: Path, data: bytes) -> tuple[dict[str, Any], str]:
    """The TOML in ``data``, which was read from ``path``, as a document and as text. Raises ``ConfigError``."""
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


def line_of(text: str, keys: tuple[str | int, ...]) -> int:
    """The number of the line on which the value that ``keys`` lead to begins.

    The parser gives no lines, but knows every spelling: so it is given ever more of the text. The
    first lines that parse and have the keys end with the value, and it began after the last
    lines that parsed before.
    """
    import tomli

    lines = text.replace("\r\n", "\n").split("\n")
    begin = 1
    for count in range(1, len(lines) + 1):
        try:
            document: Any = tomli.loads("\n".join(lines[:count]))
        except tomli.TOMLDecodeError:
            continue
        if _has(document, keys):
            return begin
        begin = count + 1
    return begin


def _has(document: Any, keys: tuple[str | int, ...]) -> bool:
    for key in keys:
        if isinstance(key, int):
            if not isinstance(document, list) or key >= len(document):
                return False
        elif not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
