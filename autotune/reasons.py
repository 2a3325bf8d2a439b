"""Why a job waits, is held or has ended: a value to compare and to store, and the sentence that users read.

Whatever decides about a job gives a `Reason`. Only `sentence` puts one into words, and nothing reads the words back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

# What a waiting job waits for, as a report adds it up.
WaitTopic = Literal["cpu", "device", "task", "turn", "window", "lease"]
# Why a job is at its end.
EndReason = Literal["stop-at-met", "budget-used", "time-used", "little-to-gain", "no-improvement", "nothing-to-tune"]
ReasonKind = Literal[
    WaitTopic,
    EndReason,
    "no-device",
    "no-device-on-nodes",
    "device-aside",
    "no-node",
    "unusable-files",
    "unfit-machine",
    "no-daemon",
    "paused",
    "held",
    "finishing",
    "control-missing",
    "control-damaged",
    "cancelled",
    "all-set-aside",
    "no-time",
]

_SENTENCES: dict[ReasonKind, str] = {
    "turn": "waits for its turn",
    "cpu": "waits for a CPU",
    "task": "waits for another job that tunes the same tasks",
    "device": "waits for {device} to measure on",
    "no-device": "needs {device}, and this machine has none",
    "no-device-on-nodes": "needs {device}, and no node of the cluster has one",
    "device-aside": "waits for {device}: {detail}",
    "no-node": "waits for a node of the cluster{because}",
    "window": "waits for the window at {opens}",
    "lease": "{resources} in use by {holders}",
    "unusable-files": "cannot continue: {detail}",
    "unfit-machine": "blocked: {detail}",
    "no-daemon": "no daemon is running; start one with `autotune daemon start`",
    "paused": "the daemon pauses: {detail}",
    "held": "held; `autotune release` continues it",
    "finishing": "held; its running stages are finishing",
    "control-missing": "held: {detail} is missing; `autotune release` continues it",
    "control-damaged": "held: {detail} is damaged; `autotune release` continues it",
    "cancelled": "cancelled",
    "stop-at-met": "target latency reached: the whole model takes {latency}",
    "budget-used": "budget used",
    "time-used": "time limit reached",
    "little-to-gain": "more trials would gain little",
    "no-improvement": "no task improves any more",
    "nothing-to-tune": "nothing to tune",
    "all-set-aside": "{detail}",
    "no-time": "no candidate of any task ran{because}; `autotune retry` tries others",
}
_TOPICS: dict[ReasonKind, WaitTopic] = {
    "turn": "turn",
    "cpu": "cpu",
    "task": "task",
    "device": "device",
    "no-device": "device",
    "no-device-on-nodes": "device",
    "device-aside": "device",
    "no-node": "cpu",
    "window": "window",
    "lease": "lease",
}


@dataclass(frozen=True)
class Reason:
    """Why a job is in its state.

    Attributes:
        kind: What it is.
        device: The kind of device that a job waits for or needs.
        resources: The names of the leases that somebody else holds.
        opens_at: When the window opens that a job waits for, in epoch seconds.
        set_aside: How many tasks of a job that is done were set aside.
        detail: What an error said, or the path of the file that it is about.
        holders: The processes that hold the resources: process id, user and command.
        latency_ms: How long a run of the whole model took when it was found to be fast enough.
    """

    kind: ReasonKind
    device: str = ""
    resources: tuple[str, ...] = ()
    opens_at: float | None = None
    set_aside: int = 0
    detail: str = ""
    holders: tuple[str, ...] = ()
    latency_ms: float | None = None

    @property
    def topic(self) -> WaitTopic | None:
        """What a job waits for; None where the reason is none to wait."""
        return _TOPICS.get(self.kind)


@lru_cache(maxsize=256)
def used_parameters(reason: Reason) -> dict[str, Any]:
    """Return the attributes of a reason that differ from their defaults."""
    return {name: value for name, value in vars(reason).items() if value != getattr(Reason, name, None)}


def sentence(reason: Reason | None) -> str:
    """Return a reason in words, for users; an empty text for None."""
    if reason is None:
        return ""
    text = _SENTENCES[reason.kind].format(
        device=_device_name(reason.device),
        opens=_time_of_day(reason.opens_at),
        resources=", ".join(reason.resources),
        holders=" and ".join(reason.holders) or "others",
        detail=reason.detail,
        latency="no longer than it may" if reason.latency_ms is None else f"{reason.latency_ms:.4g} ms",
        because=f": {reason.detail}" if reason.detail else "",
    )
    return f"{text}; {reason.set_aside} tasks set aside: {reason.detail}" if reason.set_aside else text


def _device_name(kind: str) -> str:
    names = {"": "a device", "cpu": "all CPUs", "simulated": "a simulated device"}
    if kind.startswith("rpc-"):
        return f"a board of [devices.{kind[4:]}]"
    family, _, model = kind.partition("-")
    if family == "cpu" and model:
        name, _, threads = model.rpartition("-")
        return f"{threads} CPUs of the model {name.replace('_', ' ')}"
    if family == "cuda" and model:
        return f"a GPU of the model {model.replace('_', ' ')}"
    return names.get(kind, f"a {kind.upper()} device")


def _time_of_day(opens_at: float | None) -> str:
    try:
        return "its next opening" if opens_at is None else datetime.fromtimestamp(opens_at).strftime("%H:%M")
    except (ValueError, OverflowError, OSError):  # no calendar has this time: the file is damaged
        return "its next opening"
