"""Status says of each job what holds now and why, from its files alone."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autotune.commands import render
from autotune.commands.job_status import (
    JobStatus,
    ResourceStatus,
    TaskStatus,
    WholeModel,
    daemon_json,
    resources,
    snapshot,
    to_json,
)
from autotune.commands.render import troubles
from autotune.options import InputSpec
from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes, give_up
from autotune.storage.daemon_info import ClusterNode, DaemonInfo, DeviceAside, RunningStage, running_daemon
from autotune.storage.formats import Control, Entry, JobState, State, TaskProgress
from autotune.storage.identity import Identity
from autotune.storage.paths import JobPaths, Workspace

Make = Callable[..., JobPaths]
OLDER = Reason("window", opens_at=None)
CRASHED = Reason("all-set-aside", detail="build: crashed")


def serve(workspace: Workspace, *running: int, waits: dict[str, Reason] | None = None, **more: Any) -> None:
    """Say that this process is the daemon, and that it runs these jobs."""
    stages = tuple(RunningStage(job, 0, 0, "build", (0,), 0.0) for job in running)
    info = DaemonInfo(Identity.current().to_json(), 0.0, "interleave", False, stages, waits or {}, **more)
    formats.write(workspace.daemon_info, info)


def only(workspace: Workspace) -> JobStatus:
    (job,) = snapshot(workspace)
    return job


def shown(workspace: Workspace) -> tuple[State, str]:
    job = only(workspace)
    return job.state, job.reason


class TestState:
    def test_without_a_daemon_a_job_waits_for_one(self, workspace: Workspace, make_job: Make) -> None:
        make_job(state=JobState("running"))
        assert shown(workspace) == ("waiting", "no daemon is running; start one with `autotune daemon start`")

    def test_with_a_daemon_it_is_where_that_says(self, workspace: Workspace, make_job: Make) -> None:
        make_job(state=JobState("waiting", OLDER))
        serve(workspace, 1)
        assert shown(workspace) == ("running", "")
        serve(workspace, 2, waits={"1": Reason("cpu")})
        assert shown(workspace) == ("waiting", "waits for a CPU")
        serve(workspace)
        assert shown(workspace) == ("waiting", "waits for the window at its next opening")

    @pytest.mark.parametrize("daemon", [False, True])
    def test_a_cancelled_job_is_so_at_once(self, workspace: Workspace, make_job: Make, daemon: bool) -> None:
        make_job(control=Control("cancel"), state=JobState("running"))
        serve(workspace, 1) if daemon else None
        assert shown(workspace) == ("cancelled", "cancelled")

    def test_a_retry_not_yet_seen_makes_it_wait_again(self, workspace: Workspace, make_job: Make) -> None:
        make_job(control=Control("run", 1), state=JobState("failed", CRASHED))
        assert shown(workspace) == ("waiting", "no daemon is running; start one with `autotune daemon start`")


class TestFilesThatCannotBeRead:
    def test_a_missing_spec_is_a_failed_job(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(3, "bert-base")
        paths.spec.unlink()
        job = only(workspace)
        assert (job.id, job.name, job.state, job.reason) == (3, "bert-base", "failed", f"{paths.spec} is missing")

    def test_one_does_not_hide_the_others(self, workspace: Workspace, make_job: Make) -> None:
        make_job(1).spec.write_text("")
        damaged = make_job(2).spec
        damaged.write_text("?")
        make_job(3, state=JobState("running")).state.write_text("?")
        jobs = snapshot(workspace)
        assert [(job.id, job.state) for job in jobs] == [(1, "failed"), (2, "failed"), (3, "waiting")]
        assert jobs[1].reason.startswith(f"{damaged} is damaged")

    def test_what_is_no_job_is_passed_over_and_a_workspace_without_jobs_is_empty(self, workspace: Workspace) -> None:
        workspace.incoming("42-abc").mkdir()
        (workspace.jobs / "README.md").touch()
        assert snapshot(workspace) == []
        shutil.rmtree(workspace.jobs)
        assert snapshot(workspace) == []


class TestProgress:
    def test_it_is_the_daemons_count(self, workspace: Workspace, make_job: Make) -> None:
        done = (TaskProgress(8, 12.5), TaskProgress(3))
        make_job(trials=64, state=JobState("running", trials_done=11, tasks=done))
        job = only(workspace)
        assert (job.trials_done, job.trials_total) == (11, 64)
        assert job.tasks == (TaskStatus("conv0", 1, 8, 12.5, 1.0, 40_000.0), TaskStatus("conv1", 2, 3, None))

    def test_before_the_daemon_counts_there_is_none(self, workspace: Workspace, make_job: Make) -> None:
        make_job()
        job = only(workspace)
        assert [(task.trials, task.best_us) for task in job.tasks] == [(0, None), (0, None)] and job.latency_ms is None

    def test_the_end_is_what_the_daemon_foresees(self, workspace: Workspace, make_job: Make) -> None:
        make_job(state=JobState("running"))
        assert only(workspace).eta_seconds is None
        serve(workspace, 1, ends={"1": time.time() + 60})
        assert only(workspace).eta_seconds == pytest.approx(60.0, abs=10)
        serve(workspace, 2, ends={"1": time.time() + 60})
        assert only(workspace).state == "waiting"
        assert only(workspace).eta_seconds == pytest.approx(60.0, abs=10)

    @pytest.mark.parametrize("ends", [{}, {"1": 1e12}])
    def test_a_held_job_and_one_that_nobody_knows_have_no_end(
        self, workspace: Workspace, make_job: Make, ends: dict[str, float]
    ) -> None:
        make_job(1, control=Control("hold" if ends else "run"))
        serve(workspace, ends=ends)
        assert only(workspace).eta_seconds is None

    def test_the_whole_model_takes_what_it_took_besides_its_tasks_more_than_they_do_now(
        self, workspace: Workspace, make_job: Make
    ) -> None:
        paths = make_job(state=JobState(tasks=(TaskProgress(8, 1000.0), TaskProgress(8, 250.0))))
        assert (only(workspace).latency_ms, only(workspace).whole_model) == (1.5, None)
        times = EntryTimes("main", (2.5, 3.0, 9.0), 2.0, "onnxruntime", 1.25)
        formats.write(paths.confirmed, replace(Confirmation.of([times], 5.0), at=7.0))
        assert only(workspace).whole_model == WholeModel(2.5, 1.0, "onnxruntime", 1.25, 7.0)
        (shown,) = to_json(snapshot(workspace))["jobs"]
        assert shown["whole_model"]["model_ms"] == 2.5 and shown["whole_model"]["reference"] == "onnxruntime"
        formats.write(paths.confirmed, Confirmation.of([EntryTimes("main", (6.0,), 8.0)], 5.0))
        whole = only(workspace).whole_model
        assert whole is not None and (whole.model_ms, whole.outside_ms) == (1.125, -0.375)
        formats.write(paths.confirmed, Confirmation.of([EntryTimes("main", (3.0,), 2.0)], 5.0))
        give_up(paths, "confirm: crashed")
        whole = only(workspace).whole_model
        assert whole is not None and (whole.model_ms, whole.reference, whole.reference_ms) == (2.5, "", None)
        assert only(workspace).not_timed == "confirm: crashed"


class TestDeadline:
    def test_it_is_missed_when_the_end_is_expected_later(self, workspace: Workspace, make_job: Make) -> None:
        make_job(deadline=time.time() + 600)
        assert not only(workspace).misses_deadline, "nobody knows yet"
        for left, missed in ((300, False), (900, True)):
            serve(workspace, 1, ends={"1": time.time() + left})
            assert only(workspace).misses_deadline == missed

    def test_it_is_missed_once_it_is_past_unless_the_job_had_ended(self, workspace: Workspace, make_job: Make) -> None:
        make_job(1, deadline=time.time() - 1)
        make_job(2, "kept", deadline=1.705e9, state=JobState("done", finished_at=1.7e9))
        make_job(3, "late", deadline=1.705e9, state=JobState("done", finished_at=1.71e9))
        assert [job.misses_deadline for job in snapshot(workspace)] == [True, False, True]


class TestResources:
    def test_each_cpu_and_device_says_what_it_does_and_what_is_shared_has_several(self) -> None:
        stages = (RunningStage(3, 1, 2, "measure", (1,), 5.0, "cuda:0"), RunningStage(4, 0, 0, "search", (2,), 6.0))
        info = DaemonInfo({"pid": 7}, 0.0, "interleave", running=stages, cpus=(0, 1, 2), devices=("cpu", "cuda:0"))
        assert resources(info) == [
            ResourceStatus("cpu", 0),
            ResourceStatus("cpu", 1, 3, 1, 2, "measure", 5.0),
            ResourceStatus("cpu", 2, 4, 0, 0, "search", 6.0),
            ResourceStatus("cuda:0", None, 3, 1, 2, "measure", 5.0),
        ]
        stages = tuple(RunningStage(job, 0, 0, "build", (0,), 5.0) for job in (1, 2))
        info = DaemonInfo({"pid": 7}, 0.0, "uncoordinated", running=stages, cpus=(0,), devices=("cpu",))
        assert [(item.resource, item.job) for item in resources(info)] == [("cpu 0", 1), ("cpu 0", 2)]

    def test_as_json_it_has_exactly_the_documented_keys(self) -> None:
        info = DaemonInfo(
            {"pid": 7},
            1.0,
            "interleave",
            waits={"2": Reason("turn")},
            window="22:00-07:00",
            cpus=(0,),
        )
        idle = {"resource": "cpu 0", "job": None, "task": None, "round": None, "stage": "", "since": None, "node": ""}
        assert json.loads(json.dumps(daemon_json(info))) == {
            "version": 1,
            "pid": 7,
            "started_at": 1.0,
            "policy": "interleave",
            "window": "22:00-07:00",
            "stopping": False,
            "trouble": "",
            "busy": "",
            "resources": [idle],
            "waits": {"2": "waits for its turn"},
            "nodes": [],
            "aside": [],
        }

    def test_of_a_board_that_is_set_aside_it_says_why_and_until_when(self) -> None:
        info = DaemonInfo({"pid": 7}, 1.0, "interleave", aside=(DeviceAside("rpc-phone:1", "it hangs", 86_400.0),))
        (line,) = troubles(info)
        assert line.startswith("rpc-phone:1 is set aside until ") and line.endswith(":00: it hangs")

    def test_of_a_cluster_it_says_what_each_node_does_and_why_others_do_not_serve(self) -> None:
        nodes = (
            ClusterNode("n1", "serving", "", (10_000, 10_003), (), ("simulated:n1/gpu0", "cpu-EPYC-2:n1")),
            ClusterNode("n2", "refused", "it has apache-tvm 0.26 in place of 0.27"),
            ClusterNode("n3", "lost"),
            ClusterNode("n4", "serving", slowness={"build": 5, "measure": 12}),
        )
        stages = (RunningStage(1, 0, 0, "measure", (10_003,), 0.0, "simulated:n1/gpu0"),)
        info = DaemonInfo({"pid": 7}, 0.0, "predictive", running=stages, cpus=(10_000, 10_003), nodes=nodes)
        rows = [(item.node, item.resource, item.job) for item in resources(info)]
        assert rows == [("n1", "cpu 0", None), ("n1", "cpu 3", 1), ("n1", "simulated:n1/gpu0", 1)]
        assert troubles(info) == [
            "node n2 is refused: it has apache-tvm 0.26 in place of 0.27",
            "node n3 is lost",
            "node n4 is slow: compared with other nodes, build takes 5 times as long, measure takes 12 times as long",
        ]
        told = daemon_json(info)["nodes"]
        assert [(node["name"], node["state"]) for node in told] == [
            ("n1", "serving"),
            ("n2", "refused"),
            ("n3", "lost"),
            ("n4", "serving"),
        ]
        assert told[3]["slowness"] == {"build": 5, "measure": 12}
        assert "n1 cpu 3" in _printed(render.resources(info))
        assert formats.from_json(DaemonInfo, formats.to_json(info)) == info


def _printed(table: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


class TestDaemon:
    def test_one_is_there_while_its_process_lives(self, workspace: Workspace) -> None:
        assert running_daemon(workspace) is None
        serve(workspace)
        assert running_daemon(workspace) is not None
        gone = Identity.current().to_json() | {"start_time": 1}
        formats.write(workspace.daemon_info, DaemonInfo(gone, 0.0, "interleave"))
        assert running_daemon(workspace) is None
        for text in ("", "{}", '{"format": "autotune-daemon", "version": 99}'):
            workspace.daemon_info.write_text(text)
            assert running_daemon(workspace) is None


class TestJson:
    def test_it_has_exactly_the_documented_keys(self, workspace: Workspace, make_job: Make) -> None:
        make_job(2, "vgg", tasks=1, state=JobState("done", Reason("budget-used"), 64, (TaskProgress(64, 2.5),), 1.75e9))
        assert json.loads(json.dumps(to_json(snapshot(workspace)))) == {
            "version": 1,
            "jobs": [
                {
                    "id": 2,
                    "name": "vgg",
                    "model": "/models/vgg.onnx",
                    "target": "llvm",
                    "state": "done",
                    "reason": "budget used",
                    "trials_done": 64,
                    "trials_total": 64,
                    "tasks": [
                        {
                            "name": "conv0",
                            "weight": 1,
                            "trials": 64,
                            "best_us": 2.5,
                            "share": 1.0,
                            "gflops": 200_000.0,
                            "tunable": True,
                        }
                    ],
                    "eta_seconds": None,
                    "submitted_at": 1_700_000_000.0,
                    "finished_at": 1.75e9,
                    "deadline": None,
                    "misses_deadline": False,
                    "entries": [],
                    "automatic": False,
                    "metric": {"name": "time", "unit": "ms", "better": "smaller"},
                    "whole_model": None,
                    "not_timed": "",
                }
            ],
        }

    def test_an_unreadable_job_has_the_same_keys(self, workspace: Workspace, make_job: Make) -> None:
        make_job(1)
        make_job(2).spec.unlink()
        good, bad = to_json(snapshot(workspace))["jobs"]
        assert good.keys() == bad.keys()


def test_only_the_jobs_asked_for_are_shown_and_looking_changes_nothing(workspace: Workspace, make_job: Make) -> None:
    chosen = [make_job(id, f"n{id}", control=Control("hold"), state=JobState("running")) for id in (1, 2, 3)][1:]
    before = {path: path.stat().st_mtime_ns for path in workspace.root.rglob("*")}
    assert [job.id for job in snapshot(workspace, chosen)] == [2, 3]
    assert snapshot(workspace, []) == []
    assert {path: path.stat().st_mtime_ns for path in workspace.root.rglob("*")} == before


def test_each_of_several_shapes_has_its_share_of_the_latency_and_its_time_of_the_whole_model(
    workspace: Workspace, make_job: Make
) -> None:
    inputs = (InputSpec("x", (1, 8), "float32"),)
    entries = tuple(Entry(name, inputs, weights) for name, weights in (("n=8", (1, 0)), ("n=16", (0, 2))))
    paths = make_job(entries=entries, state=JobState("running", tasks=(TaskProgress(4, 500.0), TaskProgress())))
    assert [(entry.name, entry.latency_ms) for entry in only(workspace).entries] == [("n=8", 0.5), ("n=16", None)]
    shown = {"name": "n=8", "latency_ms": 0.5, "model_ms": None}
    assert to_json(snapshot(workspace))["jobs"][0]["entries"][0] == shown
    formats.write(paths.state, JobState("running", tasks=(TaskProgress(4, 500.0), TaskProgress(4, 500.0))))
    times = [EntryTimes("n=8", (1.5,), 1.0, "onnxruntime", 2.0), EntryTimes("n=16", (3.0,), 1.0, "onnxruntime", 4.0)]
    formats.write(paths.confirmed, Confirmation.of(times, 5.0))
    job = only(workspace)
    assert [entry.model_ms for entry in job.entries] == [1.0, 3.0]
    assert job.whole_model is not None and (job.whole_model.model_ms, job.whole_model.reference_ms) == (4.0, 6.0)
