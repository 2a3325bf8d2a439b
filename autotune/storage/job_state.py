"""The state of a job: what its control file, its state file and its daemon mean together.

Everybody who has to know whether a job has ended, is held or may run asks here.
"""

from __future__ import annotations

from autotune.reasons import Reason
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.formats import ENDED, Control, JobState, State, Wanted

_REQUESTED: dict[Wanted, State] = {"cancel": "cancelled", "hold": "held"}


def retry_requested(control: Control, retries_seen: int) -> bool:
    """Return whether the user has asked for a retry that the daemon has not begun.

    Args:
        control: What the user wants.
        retries_seen: How many retries the daemon has begun.
    """
    return control.retries > retries_seen


def has_ended(control: Control, state: JobState) -> bool:
    """Return whether a job is at its end and is not to be retried."""
    return state.state in ENDED and not retry_requested(control, state.retries_seen)


def requested_state(control: Control) -> State | None:
    """Return the state that the user wants a job to be in, `cancelled` or `held`; None if it is to run."""
    return _REQUESTED.get(control.wanted)


def effective_state(control: Control, state: JobState) -> State:
    """Return the state of a job once the daemon has done what the user has asked for so far."""
    if has_ended(control, state):
        return state.state
    return requested_state(control) or ("waiting" if state.state in ENDED else state.state)


def current_state(id: int, control: Control, state: JobState, daemon: DaemonInfo | None) -> tuple[State, Reason | None]:
    """Return the state of a job at this moment, and why it is in it.

    Args:
        id: The job's id.
        control: What the user wants of it.
        state: What a daemon last wrote of it.
        daemon: The daemon that serves the workspace; None if none does.
    """
    if has_ended(control, state):
        return state.state, state.reason
    requested = requested_state(control)
    if requested == "cancelled":
        return requested, Reason("cancelled")
    if requested is not None:
        return requested, control.reason or Reason("held")
    if daemon is None:
        blocked = state.reason is not None and state.reason.kind == "unfit-machine"  # it is for the user to mend
        return "waiting", state.reason if blocked else Reason("no-daemon")
    if daemon.trouble:
        return "waiting", Reason("paused", detail=daemon.trouble)
    if any(stage.job == id for stage in daemon.running):
        return "running", None
    return "waiting", daemon.waits.get(str(id)) or _last_wait(state) or Reason("turn")


def _last_wait(state: JobState) -> Reason | None:
    return state.reason if state.state in ("waiting", "running") else None
