"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"`((?:autotune [a-z-]|python scripts/|scripts/|podman )[^`]*)`")
_INDENTED = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.M)


class Block(NamedTuple):
    """A code block: the language of its fence, and its text without indentation."""

    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The fenced and the indented code blocks of a page."""
    text = page.read_text()
    fenced = [Block(match[1], match[2]) for match in _FENCED.finditer(text)]
    indented = [
        Block("", textwrap.dedent(block).strip("\n")) for block in _INDENTED.findall(_FENCED.sub("", text) + "\n")
    ]
    return fenced + indented


def commands(page: Path) -> list[str]:
    """The command lines of a page: those in the text, lines after `$ `, and those that begin with a program of ours.

    One or two words in the text, such as `autotune submit`, name a command or a script: they are no command line.
    """
    text = _FENCED.sub("", page.read_text())
    spans = [" ".join(span.split()) for span in _SPAN.findall(text)]
    lines = [span for span in spans if len(span.split()) > 2]
    for block in blocks(page):
        if block.language not in ("", "sh", "console"):
            continue
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():  # a backslash continues a line
            prompted = line.startswith("$ ")
            words = line.removeprefix("$ ").split("&&")
            for word in words:
                if prompted or re.match(r"\s*(\w+=\$\()?(autotune [a-z-]+( |$)|python scripts/|scripts/)", word):
                    lines.append(re.sub(r"\s+# .*", "", word).strip())
    return lines
