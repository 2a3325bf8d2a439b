"""Why a job waits: in words for `status`, and as one of a few things that a report adds up."""

from __future__ import annotations

from typing import Literal

About = Literal["cpu", "device", "task", "turn", "window", "lease"]

TURN = "waits for its turn"
CPU = "waits for a CPU"
TASK = "waits for another job that tunes the same tasks"
_WINDOW = "waits for the window at "
_DEVICE = "to measure on"
_LACKS = "and this machine has none"


def for_device(kind: str) -> str:
    """A batch is ready, and every device of its kind is busy."""
    return f"waits for {_name(kind)} {_DEVICE}"


def lacks(kind: str) -> str:
    """A batch is ready for a device that the machine does not have."""
    return f"needs {_name(kind)}, {_LACKS}"


def for_window(opens: str) -> str:
    """Nothing may start before then."""
    return f"{_WINDOW}{opens}"


def waits_for(reason: str) -> About:
    """What a reason is about: `turn`, `cpu`, `device`, `task` or `window`; `lease` for what others have leased."""
    known: dict[str, About] = {TURN: "turn", CPU: "cpu", TASK: "task"}
    if reason.startswith(_WINDOW):
        return "window"
    if reason.endswith((_DEVICE, _LACKS)):
        return "device"
    return known.get(reason, "lease")


def _name(kind: str) -> str:
    if kind == "simulated":
        return "a simulated device"
    return "all CPUs" if kind == "cpu" else f"a {kind.upper()} device"
