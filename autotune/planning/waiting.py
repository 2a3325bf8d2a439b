"""The reasons why the planner starts no stage of a job."""

from __future__ import annotations

from functools import cache

from autotune.reasons import Reason

TURN = Reason("turn")
CPU = Reason("cpu")
TASK = Reason("task")


@cache
def for_device(kind: str) -> Reason:
    """Return the reason of a job with a batch to measure while all devices of its kind are busy."""
    return Reason("device", device=kind)


@cache
def lacks(kind: str, *, nodes: bool = False) -> Reason:
    """Return the reason of a job for a kind of device that the machine does not have, or none of the nodes has."""
    return Reason("no-device-on-nodes" if nodes else "no-device", device=kind)


def for_window(opens_at: float) -> Reason:
    """Return the reason of a job that may start nothing before an epoch second."""
    return Reason("window", opens_at=opens_at)
