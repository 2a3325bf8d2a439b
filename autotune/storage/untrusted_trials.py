"""Check tuning logs and trials that come from elsewhere: of another workspace, or from the lock file of an export.

The checks of schedules are in `tvm_backend/untrusted_traces.py`, and handed in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from autotune.errors import InvalidData
from autotune.storage.device_kind import DeviceKind, is_claimed
from autotune.storage.formats import Trial, to_json

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HASH = re.compile(r"[0-9a-f]{16}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_JOB_LENGTH = 4096
_MAX_TEXT_LENGTH = 200  # about a kind of device

CheckTrace = Callable[[Any], None]  # raises ValueError for a trace that is more than a schedule


def check_log(key: str, task: str, kind: DeviceKind | None) -> None:
    """Check what a tuning log of another workspace says that it is.

    Raises:
        InvalidData: Its names are no names of folders and files here, or the kind of device is another one.
    """
    if not (_KEY.fullmatch(key) and _HASH.fullmatch(task)) or is_claimed(key):
        raise InvalidData(f"{key[:80]!r} and {task[:80]!r} name no tuning log")
    try:
        honest = kind is None or (kind.key == key and _is_plain(to_json(kind)))
    except (KeyError, TypeError, RecursionError):
        honest = False
    if not honest:
        raise InvalidData(f"{key!r} is not the kind of device that it says")


def _is_plain(value: Any) -> bool:
    """Return whether all texts in some data are short and printable, for a table shows them."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or (len(value) <= _MAX_TEXT_LENGTH and value.isprintable())


def check_trial(trial: Trial, check_trace: CheckTrace) -> None:
    """Check a trial that another workspace measured.

    Raises:
        InvalidData: It is not one that a tuning log may hold.
    """
    times = trial.times_us
    if not _HASH.fullmatch(trial.hash):
        raise InvalidData(f"{trial.hash[:80]!r} is not the hash of a candidate")
    if bool(times) == (trial.failure is not None) or not all(0 < time < math.inf for time in times):
        raise InvalidData(f"the times of candidate {trial.hash} are not times")
    if not (
        math.isfinite(trial.at) and trial.round >= 0 and trial.job.isprintable() and len(trial.job) < _MAX_JOB_LENGTH
    ):
        raise InvalidData(f"the origin of candidate {trial.hash} is not one")
    try:
        if not _is_combination(trial.trace):
            check_trace(trial.trace)
        _check_arguments(trial.args)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidData(f"the schedule of candidate {trial.hash} is refused: {error}") from error


def _is_combination(trace: Any) -> bool:
    """Return whether a trace is the values of commands by parameter: data, which a job looks up in its own space."""
    if not isinstance(trace, dict) or trace.keys() != {"values"} or not isinstance(trace["values"], dict):
        return False
    return all(isinstance(value, str | int | float) for value in trace["values"].values())


def _check_arguments(args: Any) -> None:
    for kind, dtype, shape in args:
        numbers = all(type(extent) is int and extent >= 0 for extent in shape)
        if kind != "TENSOR" or not _DTYPE.fullmatch(dtype) or not numbers:
            raise ValueError("its arguments are no tensors")
