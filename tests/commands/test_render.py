"""What people read: whole, aligned, and never taken for markup."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.commands import render
from autotune.commands.job_status import EntryStatus, JobStatus, TaskStatus, WholeModel
from autotune.storage.daemon_info import DaemonInfo

JOB = JobStatus(7, "net", "net.onnx", "llvm", "waiting", "", 3, 9, (), None, 0.0, None)


def shown(*items: object) -> str:
    console = Console(width=200, file=io.StringIO())
    for item in items:
        console.print(item)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("done", "text"), [(3, " 3/9 "), (9, " 9/9 "), (12, " 9/9 +3 ")], ids=["within", "at the end", "beyond"]
)
def test_trials_beyond_the_budget_are_told_apart(done: int, text: str) -> None:
    assert text in shown(render.queue([replace(JOB, trials_done=done)], None))


def test_reasons_are_shown_as_they_are_without_what_a_terminal_obeys() -> None:
    reason = "cannot read [/srv/jobs] of [conv2d]"
    assert reason in shown(render.queue([replace(JOB, reason=reason)], None))
    spoilt = "red\x1b[31m\x1b]0;title\x07"
    tasks = (TaskStatus(spoilt, 1, 0, None),)
    job = replace(JOB, name=spoilt, target=spoilt, reason=spoilt, tasks=tasks)
    text = shown(render.queue([job], None), render.tasks(job))
    assert text.count("red?[31m?]0;title?") == 4
    assert "\x1b" not in text and "\x07" not in text


def test_a_busy_machine_is_told_below_the_table() -> None:
    daemon = DaemonInfo({"pid": 1}, 0.0, "predictive", cpus=(0,), busy="other processes used 35% of its CPUs")
    told = "the machine is busy: in a measurement other processes used 35% of its CPUs"
    assert shown(render.queue([JOB], daemon)).splitlines()[-1] == told
    assert "busy" not in shown(render.queue([JOB], replace(daemon, busy="")))


def test_the_sum_of_tasks_counts_each_as_often_as_it_runs() -> None:
    tasks = (TaskStatus("a", 2, 1, 1000.0), TaskStatus("b", 1, 1, 500.0), TaskStatus("c", 1, 0, None))
    assert "2.500 ms" in shown(render.queue([replace(JOB, tasks=tasks)], None))
    assert JOB.latency_ms is None
    assert " - " in shown(render.queue([JOB], None))
    assert render.whole_model(replace(JOB, not_timed="crashed")) == "the whole model could not be timed: crashed"


@pytest.mark.parametrize(("tunable", "text"), [(True, " >2.000 ms "), (False, " 2.000 ms ")])
def test_a_sum_that_lacks_a_task_with_trials_to_come_is_a_least_value(tunable: bool, text: str) -> None:
    tasks = (TaskStatus("a", 2, 1, 1000.0), TaskStatus("b", 1, 0, None, tunable=tunable))
    assert text in shown(render.queue([replace(JOB, tasks=tasks)], None))


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        (None, ""),
        (
            WholeModel(3.0, 0.5, "onnxruntime", 2.0, 0.0),
            "the whole model takes 3 ms: 2.5 ms in its tasks and 0.5 ms outside of them;"
            " ONNX Runtime takes 2 ms, and the tuned model 1.50 of it",
        ),
        (
            WholeModel(9.0, 6.5, "", None, 0.0),
            "the whole model takes 9 ms: 2.5 ms in its tasks and 6.5 ms outside of them, which no trial shortens",
        ),
        (WholeModel(2.4, -0.1, "", None, 0.0), "the whole model takes 2.4 ms: 2.5 ms in its tasks"),
    ],
)
def test_the_time_of_the_whole_model_is_told_with_where_it_goes(whole: WholeModel | None, says: str) -> None:
    job = replace(JOB, tasks=(TaskStatus("a", 2, 1, 1000.0), TaskStatus("b", 1, 1, 500.0)), whole_model=whole)
    assert render.whole_model(job) == says
    assert ("MODEL" in shown(render.queue([JOB, job], None))) == (whole is not None)


def test_each_set_of_shapes_has_its_times() -> None:
    entries = (EntryStatus("short", 1.5, 2.25), EntryStatus("long", 7.0))
    rows = shown(render.tasks(replace(JOB, entries=entries))).splitlines()
    assert [row.split() for row in rows[-2:]] == [["short", "1.500", "ms", "2.250", "ms"], ["long", "7.000", "ms", "-"]]


def test_the_daemon_says_for_how_long_it_has_run() -> None:
    info = DaemonInfo({"pid": 7}, time.time() - 7200, "interleave", stopping=True, window="22:00-06:00")
    assert render.daemon(info) == "pid 7, interleave, 22:00-06:00 only, running for 2h00m, stopping"
