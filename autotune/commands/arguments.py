"""Rearrange the words of a command line before it is parsed."""

from __future__ import annotations


def hoist_workspace(words: list[str]) -> list[str]:
    """Move `--workspace DIR` before the verb, so that it may stand anywhere on the command line.

    Args:
        words: The words of the command line.
    """
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
