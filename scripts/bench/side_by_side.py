"""Calls that run side by side in processes which have the memory of their parent."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

Replayed = TypeVar("Replayed")
_SHARED: list[Callable[[int, int], Any]] = []


def side_by_side(one: Callable[[int, int], Replayed], spaces: int, count: int, processes: int) -> list[list[Replayed]]:
    """Call a function with each space and each number below `count`, in several processes.

    Returns:
        What it returned, [spaces, count].
    """
    work = [(space, number) for space in range(spaces) for number in range(count)]
    context = multiprocessing.get_context("fork")  # so that each process has the spaces
    with context.Pool(processes, initializer=_SHARED.append, initargs=(one,)) as pool:
        made = pool.starmap(_call_shared, work, chunksize=4)
    return [made[first : first + count] for first in range(0, len(made), count)]


def _call_shared(space: int, number: int) -> Any:
    return _SHARED[-1](space, number)
