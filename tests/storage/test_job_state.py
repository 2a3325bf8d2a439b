"""What holds for a job follows from its control, its last state and its daemon, in one place for all who ask."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from autotune.reasons import Reason
from autotune.storage.daemon_info import DaemonInfo, RunningStage
from autotune.storage.formats import ENDED, Control, JobState, State, Wanted
from autotune.storage.job_state import (
    Service,
    effective_state,
    has_ended,
    retry_requested,
    state_of,
)


def daemon(*running: int, **more: Any) -> DaemonInfo:
    stages = tuple(RunningStage(job, 0, 0, "build", (0,), 0.0) for job in running)
    return DaemonInfo({"pid": 1}, 0.0, "interleave", running=stages, **more)


def test_the_user_requests_a_state_and_a_retry_until_the_daemon_has_begun_it() -> None:
    wanted: tuple[Wanted, ...] = ("run", "hold", "cancel")
    assert [effective_state(Control(one), JobState()) for one in wanted] == ["waiting", "held", "cancelled"]
    control = Control(retries=2)
    assert retry_requested(control, 1) and not retry_requested(control, 2)
    assert has_ended(control, JobState("failed", retries_seen=2))
    assert not has_ended(control, JobState("failed", retries_seen=1))


@pytest.mark.parametrize("state", get_args(State))
@pytest.mark.parametrize("wanted", get_args(Wanted))
@pytest.mark.parametrize("retries", [0, 1])
def test_commands_and_status_agree(state: State, wanted: Wanted, retries: int) -> None:
    """Except about a job that may run: whether it waits is for its daemon to say."""
    control = Control(wanted, retries)
    job = JobState(state)
    effective = effective_state(control, job)
    current, _ = state_of(control, job, Service())
    if current == "waiting":
        assert effective not in ENDED and wanted == "run"
    else:
        assert current == effective


@pytest.mark.parametrize(
    ("state", "serving", "shown"),
    [
        (JobState(), None, ("waiting", Reason("no-daemon"))),
        (JobState(), daemon(trouble="no space"), ("waiting", Reason("paused", detail="no space"))),
        (JobState(), daemon(1), ("running", None)),
        (JobState(), daemon(2), ("waiting", Reason("turn"))),
        (JobState(), daemon(waits={"1": Reason("cpu")}), ("waiting", Reason("cpu"))),
        (JobState("running", Reason("task")), daemon(), ("waiting", Reason("task"))),
        (JobState("held", Reason("held")), daemon(), ("waiting", Reason("turn"))),
        (JobState("done", Reason("budget-used")), daemon(1), ("done", Reason("budget-used"))),
    ],
)
def test_a_job_that_is_to_run_is_where_its_daemon_says(
    state: JobState, serving: DaemonInfo | None, shown: tuple[State, Reason | None]
) -> None:
    assert state_of(Control(), state, Service.by(serving, 1)) == shown


def test_a_held_job_is_finishing_while_a_stage_of_it_runs_and_says_why_it_is_held() -> None:
    assert state_of(Control("hold"), JobState("running"), Service.by(daemon(1), 1)) == ("held", Reason("finishing"))
    assert state_of(Control("hold"), JobState("running"), Service.by(daemon(2), 1)) == ("held", Reason("held"))
    assert state_of(Control("hold"), JobState("running"), None) == ("held", Reason("held"))
    reason = Reason("control-damaged", detail="control.json")
    assert state_of(Control("hold", reason=reason), JobState(), None) == ("held", reason)
