"""Apply a trace that was recorded on one model to an equal program of another, whose blocks have other names.

TVM names some blocks after variables of the model, such as `lv193_red` for a sum over `lv193`. Equal programs share
their trials, whatever their blocks are called, but a trace finds its blocks by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_ROOT = "root"


def with_names_of(trace: Any, program: Any) -> Any:
    """Return a trace in JSON form with the names of a program's blocks in place of those that the program lacks.

    A name that is missing stands for the block that no instruction names and whose name ends alike. Several such blocks
    are taken in the order of the numbers in their names. A trace that cannot be adapted is returned as it is.

    Args:
        trace: The trace. It is not changed.
        program: The tensor program of the task, not scheduled.
    """
    wanted, there = _named(trace), _block_names(program)
    missing = sorted(_lacking(trace, there), key=_by_number)
    unused = sorted((name for name in there if name not in wanted), key=_by_number)
    renamed: dict[str, str] = {}
    for name in missing:
        found = next((other for other in unused if _ending(other) == _ending(name)), None)
        if found is None:
            return trace
        unused.remove(found)
        renamed[name] = found
    return [[_renamed(item, renamed) for item in trace[0]], *trace[1:]]


def _block_names(program: Any) -> list[str]:
    from tvm.s_tir import Schedule

    schedule = Schedule(program)
    blocks = schedule.get_child_blocks(schedule.get_sblock(_ROOT))
    return [str(schedule.get(block).name_hint) for block in blocks]


def _named(trace: Any) -> list[str]:
    return [str(item[2][0]) for item in trace[0] if item[0] == "GetSBlock"]


def _lacking(trace: Any, there: Sequence[str]) -> list[str]:
    """The names of blocks that the program should have and lacks. Scheduling makes more blocks before the end."""
    begun = next((at for at, item in enumerate(trace[0]) if item[0] == "EnterPostproc"), len(trace[0]))
    names = dict.fromkeys(_named([trace[0][:begun]]))
    return [name for name in names if name != _ROOT and name not in there]


def _by_number(name: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", name))


def _ending(name: str) -> str:
    return name.partition("_")[2]


def _renamed(item: Any, renamed: dict[str, str]) -> Any:
    if item[0] != "GetSBlock":
        return item
    kind, inputs, (name, *rest), outputs = item
    for old, new in renamed.items():
        if name == old or name.startswith(f"{old}_"):  # the latter is a part of the block, split off by the schedule
            return [kind, inputs, [new + name[len(old) :], *rest], outputs]
    return item
