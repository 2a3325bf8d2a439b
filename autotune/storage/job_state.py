"""The state of a job: what its control file, its last state and the daemon that serves it mean together.

Whoever has to know whether a job has ended, is held or may run asks here: the commands, `status`, and the daemon when
it writes the state file.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.reasons import Reason
from autotune.storage.daemon_info import DaemonInfo
from autotune.storage.formats import ENDED, Control, JobState, State, Wanted

_REQUESTED: dict[Wanted, State] = {"cancel": "cancelled", "hold": "held"}


@dataclass(frozen=True)
class Service:
    """What the daemon of a workspace is doing for one job.

    Attributes:
        busy: Whether a stage of the job runs.
        wait: Why it waits, unless a stage of it runs; None if its daemon has not said so yet.
        trouble: Why the daemon starts nothing at all for now.
    """

    busy: bool = False
    wait: Reason | None = None
    trouble: str = ""

    @classmethod
    def by(cls, daemon: DaemonInfo | None, job: int) -> Service | None:
        """Return what a daemon says that it does for the job of this id; None if there is no daemon."""
        if daemon is None:
            return None
        busy = any(stage.job == job for stage in daemon.running)
        return cls(busy, daemon.waits.get(str(job)), daemon.trouble)


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


def effective_state(control: Control, state: JobState) -> State:
    """Return the state of a job once the daemon has done what the user has asked for so far."""
    if has_ended(control, state):
        return state.state
    return _REQUESTED.get(control.wanted) or ("waiting" if state.state in ENDED else state.state)


def state_of(control: Control, state: JobState, service: Service | None) -> tuple[State, Reason | None]:
    """Return the state of a job at this moment, and why it is in it.

    Args:
        control: What the user wants of it.
        state: What a daemon last wrote of it.
        service: What its daemon does for it; None if no daemon serves the workspace.
    """
    if has_ended(control, state):
        return state.state, state.reason
    if control.wanted == "cancel":
        return "cancelled", Reason("cancelled")
    if control.wanted == "hold":
        finishing = service is not None and service.busy
        return "held", Reason("finishing") if finishing else control.reason or Reason("held")
    if service is None:
        blocked = state.reason is not None and state.reason.kind == "unfit-machine"  # it is for the user to mend
        return "waiting", state.reason if blocked else Reason("no-daemon")
    if service.trouble:
        return "waiting", Reason("paused", detail=service.trouble)
    if service.busy:
        return "running", None
    return "waiting", service.wait or _last_wait(state) or Reason("turn")


def _last_wait(state: JobState) -> Reason | None:
    return state.reason if state.state in ("waiting", "running") else None
