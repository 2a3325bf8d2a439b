"""Every moment of a job is accounted for, once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.commands.wall_time import PARTS, Times, attribute, reports
from autotune.reasons import Reason, WaitTopic
from autotune.storage import formats
from autotune.storage.daemon_info import DaemonInfo, RunningStage
from autotune.storage.formats import ENDED, KINDS, JobState, Kind
from autotune.storage.identity import Identity
from autotune.storage.journal import (
    ControlVerb,
    Event,
    JobEnded,
    StageDone,
    TaskSetAside,
    UnknownEvent,
    UserRequest,
    WaitStarted,
    append,
)
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]
SERVED = [(0.0, math.inf)]


def stage(kind: Kind, began: float, at: float) -> StageDone:
    return StageDone(kind=kind, began=began, at=at, seconds=at - began)


def waits(topic: WaitTopic, at: float) -> WaitStarted:
    return WaitStarted(Reason(topic), at=at)


def parts(
    *events: Event | UnknownEvent, served: list[tuple[float, float]] = SERVED, end: float = 100.0
) -> dict[str, float]:
    return {name: value for name, value in attribute(events, served, 0.0, end).items() if value}


MOMENTS = st.floats(-50, 150)
EVENTS = st.one_of(
    st.builds(stage, st.sampled_from(KINDS), MOMENTS, MOMENTS),
    st.builds(waits, st.sampled_from(get_args(WaitTopic)), MOMENTS),
    st.builds(lambda verb, at: UserRequest(verb, at=at), st.sampled_from(get_args(ControlVerb)), MOMENTS),
    st.builds(lambda state, at: JobEnded(state, at=at), st.sampled_from(ENDED), MOMENTS),
    st.builds(lambda at: TaskSetAside(0, "train: crashed", at=at), MOMENTS),
    st.builds(lambda at: UnknownEvent("painted", at=at), MOMENTS),
)
STRETCHES = st.lists(st.tuples(MOMENTS, MOMENTS | st.just(math.inf)).map(sorted).map(tuple), max_size=4).map(sorted)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(EVENTS, max_size=30), served=STRETCHES, begin=MOMENTS, wall=st.floats(0, 200))
def test_the_parts_sum_to_the_wall_time(events: Any, served: Any, begin: float, wall: float) -> None:
    seconds = attribute(events, served, begin, begin + wall)
    assert math.fsum(seconds.values()) == pytest.approx((begin + wall) - begin, abs=1e-6)
    assert all(value >= 0 for value in seconds.values())
    assert tuple(seconds) == PARTS


class TestRules:
    def test_of_stages_at_once_the_one_furthest_along_counts_and_two_of_a_kind_count_once(self) -> None:
        seconds = parts(stage("search", 0, 40), stage("measure", 10, 20), stage("build", 15, 30), end=40.0)
        assert seconds == {"search": 20.0, "measure": 10.0, "build": 10.0}
        assert parts(stage("build", 0, 60), stage("build", 30, 100)) == {"build": 100.0}

    def test_between_stages_it_waits_for_what_was_said_last_and_after_a_new_daemon_for_its_turn(self) -> None:
        seconds = parts(stage("build", 10, 30), waits("cpu", 30.0))
        assert seconds == {"waits turn": 10.0, "build": 20.0, "waits cpu": 70.0}
        seconds = parts(waits("window", 10.0), served=[(0.0, 40.0), (60.0, math.inf)])
        assert seconds == {"waits turn": 50.0, "waits window": 30.0, "stopped": 20.0}

    def test_without_a_daemon_it_is_stopped_unless_it_is_held_or_a_stage_runs_on(self) -> None:
        held = [UserRequest("hold", at=70.0), UserRequest("release", at=80.0)]
        assert parts(*held, served=[(0.0, 50.0)]) == {"waits turn": 50.0, "stopped": 40.0, "held": 10.0}
        assert parts(UserRequest("hold", at=10.0), stage("build", 0, 30), end=40.0) == {"build": 30.0, "held": 10.0}

    def test_the_time_between_an_end_and_a_retry(self) -> None:
        events = [JobEnded("failed", at=10.0), UserRequest("retry", at=90.0)]
        assert parts(*events) == {"waits turn": 20.0, "ended": 80.0}

    def test_before_the_record_of_daemons_begins_only_stages_are_known(self) -> None:
        events = [stage("search", 15, 20), stage("build", 30, 40)]
        assert parts(*events, served=[]) == {"search": 5.0, "build": 10.0, "unknown": 25.0, "stopped": 60.0}
        assert parts(*events, served=[(60.0, math.inf)])["waits turn"] == 40.0


class TestReports:
    def only(self, workspace: Workspace, now: float) -> Times:
        (times,) = reports(workspace, workspace.job_list(), now)
        return times

    def test_a_job_that_ended_is_reported_until_then(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(submitted_at=1000.0, state=JobState("done", finished_at=1060.0))
        times = self.only(workspace, 5000.0)
        assert (times.wall_s, times.parts["stopped"]) == (60.0, 60.0)
        paths.spec.unlink()
        assert self.only(workspace, 1000.0).wall_s == 0.0, "one that cannot be read has no time"

    def test_a_job_that_was_cancelled_without_a_daemon_ended_then(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(submitted_at=time.time() - 50, control=formats.Control("cancel"))
        append(paths.journal, UserRequest("cancel"))
        assert self.only(workspace, time.time() + 1000).wall_s == pytest.approx(50, abs=5)

    def test_what_runs_now_counts(self, workspace: Workspace, make_job: Make) -> None:
        make_job(submitted_at=1000.0)
        running = (RunningStage(1, 0, 0, "build", (0,), 1020.0),)
        formats.write(workspace.daemon_info, DaemonInfo(Identity.current().to_json(), 0.0, "p", running=running))
        assert self.only(workspace, 1050.0).parts["build"] == 30.0
