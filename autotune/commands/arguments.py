"""The words of a command line, before the commands see them."""

from __future__ import annotations


def hoist_workspace(words: list[str]) -> list[str]:
    """Let `--workspace DIR` stand anywhere: move it before the command."""
    hoisted: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
        elif word == "--workspace":
            hoisted += [word, *([value] if (value := next(left, None)) is not None else [])]
        else:
            (hoisted if word.startswith("--workspace=") else rest).append(word)
    return hoisted + rest
