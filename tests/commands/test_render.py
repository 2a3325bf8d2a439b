"""What people read: whole, aligned, and never taken for markup."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.commands import render
from autotune.commands.job_status import JobStatus, TaskStatus
from autotune.reasons import Reason
from autotune.storage.daemon_formats import DaemonInfo
from autotune.storage.journal import Event, JobEnded, StageDone, StageFailed, UserRequest

JOB = JobStatus(7, "net", "net.onnx", "llvm", "waiting", "", 3, 9, (), None, 0.0, None)


def shown(*items: object) -> str:
    console = Console(width=200, file=io.StringIO())
    for item in items:
        console.print(item)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (59.4, "59 s"), (60, "1:00"), (3599, "59:59"), (3661, "1:01:01"), (-5, "0 s")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert render.duration(seconds) == text


def test_a_reason_with_brackets_is_shown_as_it_is() -> None:
    reason = "cannot read [/srv/jobs] of [conv2d]"
    assert reason in shown(render.queue([replace(JOB, reason=reason)], None))


def test_names_and_reasons_hold_nothing_that_a_terminal_obeys() -> None:
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


def test_a_job_without_times_has_no_sum() -> None:
    assert JOB.latency_ms is None
    assert " - " in shown(render.queue([JOB], None))


def test_a_report_compares_with_both() -> None:
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": 10.0}
    found = {"latency": latency, "largest_relative_error": 1e-7, "threads": 2, "target": {"kind": "llvm"}}
    text = render.report({**found, "share_of_onnxruntime": [0.81, 0.78, 0.85], "processes": 5}, "out")
    assert "5.0 times as fast as untuned" in text
    assert "ONNX Runtime      10.000 ms   tuned takes 0.81 of it (0.78 to 0.85 in 5 processes of each)" in text


def test_a_report_says_what_was_allowed_to_a_model_that_rounds() -> None:
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": 10.0}
    found = {"latency": latency, "threads": 2, "target": {"kind": "llvm"}, "share_of_onnxruntime": [0.8, 0.78, 0.85]}
    text = render.report({**found, "largest_relative_error": 8e-3, "sensitivity": 9.4e-3, "processes": 5}, "out")
    assert "the model as submitted moves by 0.0094 with the last bit of its inputs" in text


def test_a_report_on_a_program_of_pytorch_names_pytorch() -> None:
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "torch_ms": 16.0}
    found = {"latency": latency, "largest_relative_error": 1e-7, "threads": 2, "target": {"kind": "llvm"}}
    text = render.report({**found, "reference": "torch", "share_of_torch": [0.5, 0.4, 0.6], "processes": 5}, "out")
    assert "     PyTorch      16.000 ms   tuned takes 0.50 of it (0.40 to 0.60 in 5 processes of each)" in text


def test_a_report_says_what_loading_takes() -> None:
    found = {"latency": {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": 10.0}, "threads": 2, "processes": 5}
    found |= {"target": {"kind": "llvm"}, "largest_relative_error": 1e-7, "share_of_onnxruntime": [0.8, 0.78, 0.85]}
    found |= {"load_ms": {"tuned_ms": 12.3, "onnxruntime_ms": 30.0}, "size_mb": {"model.so": 75.39, "onnx": 46.8}}
    text = render.report({**found, "memory_mb": {"tuned_ms": 91.2, "onnxruntime_ms": 60.0}, "source": True}, "out")
    assert "first outputs after 12 ms (30), peak memory 91 MB (60), model.so 75.4 MB (46.8)" in text
    assert text.endswith("wrote out: model.so, report.json, run.py, cpp/, source/")


def test_a_report_on_a_gpu_compares_with_nothing_that_ran_elsewhere() -> None:
    found = {"latency": {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": None}, "threads": 2, "processes": 5}
    found |= {"target": {"kind": "cuda"}, "largest_relative_error": 1e-7, "share_of_onnxruntime": None}
    found |= {"load_ms": {"tuned_ms": 12.3, "onnxruntime_ms": None}, "size_mb": {"model.so": 75.39, "onnx": 46.8}}
    text = render.report({**found, "memory_mb": {"tuned_ms": 91.2, "onnxruntime_ms": None}}, "out")
    assert "5.0 times as fast as untuned" in text and "of it" not in text
    assert "timed on the GPU; ONNX Runtime was not timed there" in text
    assert "first outputs after 12 ms, peak memory 91 MB, model.so 75.4 MB" in text


def test_a_report_of_several_shapes_has_each_of_them() -> None:
    latency = {"untuned_ms": 40.0, "tuned_ms": 8.0, "onnxruntime_ms": 10.0}
    entry = {"name": "n=8", "latency": latency, "share_of_onnxruntime": [0.8, 0.78, 0.85], "processes": 5}
    other = {**entry, "name": "n=16", "latency": {**latency, "tuned_ms": 4.0}}
    found = {"entries": [entry, other], "largest_relative_error": 1e-7, "threads": 2, "target": {"kind": "llvm"}}
    lines = render.report({**other, **found}, "out").splitlines()
    assert lines[0] == "n=8" and "5.0 times as fast as untuned" in lines[2]
    assert lines[4] == "n=16" and "10.0 times as fast as untuned" in lines[6]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            StageDone(kind="build", task=1, round=2, began=0.0, seconds=1.5, summary={"built": 4, "failed": 0}),
            "build   task 1 round 2  1.50 s  built 4, failed 0",
        ),
        (
            StageFailed(kind="train", began=0.0, seconds=0.1, outcome="failed", detail="no memory"),
            "train   task 0 round 0  0.10 s  FAILED reason train: failed: no memory",
        ),
        (UserRequest("hold"), "held"),
        (JobEnded("done", Reason("budget-used")), "done: reason budget used"),
    ],
)
def test_a_line_of_the_journal(event: Event, told: str) -> None:
    assert render.journal_line(event).split("  ", 1)[1] == told
