"""What `status` shows of a queue that is watched, and of one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autotune.commands import render
from autotune.commands.job_status import JobStatus, TaskStatus
from autotune.commands.references import KernelLimit
from autotune.commands.report.history import LatencyPoint
from autotune.commands.status import Screen, sparkline
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes
from autotune.storage.daemon_info import DaemonInfo, RunningStage
from autotune.storage.paths import Workspace

LONG = "winograd_conv2d_NCHWc_add_relu_with_a_very_long_tail_of_operators_fused_to_it_17"
TASKS = (TaskStatus(LONG, 1, 8, 12.5, 0.75, 40.0), TaskStatus("mean", 2, 3, None))
JOB = JobStatus(1, LONG, "/m.onnx", "llvm", "waiting", "waits for a CPU", 8, 64, TASKS, None, 0.0, None)


def lines(shown: Any, width: int) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        for item in shown if isinstance(shown, list) else [shown]:
            console.print(item)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    for table in (render.queue([JOB], None), render.queue([JOB], None, sparks={1: "█▁"}), render.tasks(JOB)):
        assert max(map(len, lines(table, width))) <= width


def test_where_bars_have_no_room_they_are_left_out_and_nothing_but_names_and_reasons_is_folded() -> None:
    narrow, wide = (lines(render.queue([JOB], None, sparks={1: "█▁"}), width) for width in (66, 140))
    assert "PROGRESS" not in narrow[0] and "PROGRESS" in wide[0]
    assert narrow[0].split() == ["ID", "NAME", "TARGET", "STATE", "TRIALS", "TASKS", "SUM", "ETA", "WHY"]
    assert "winogr…" in narrow[1] and "waiting" in narrow[1] and "8/64" in narrow[1]


def test_names_are_whole_where_there_is_room_and_lose_their_middle_elsewhere() -> None:
    (_, row, *_) = lines(render.tasks(JOB), 80)
    assert row.split()[1].startswith("winograd_conv2d") and "…" in row and row.split()[1].endswith("it_17")
    assert row.split()[2:] == ["1", "8", "12.5", "us", "75.0%", "40.0"]
    assert LONG in lines(render.tasks(JOB), 160)[1]
    assert "…" not in "".join(lines(render.tasks(JOB, verbose=True), 80))
    assert lines(render.tasks(JOB), 160)[2].split() == ["1", "mean", "2", "3", "-", "-", "-"]
    head, first, second = lines(render.tasks(JOB, limits={LONG: KernelLimit(5.0, "bandwidth")}), 160)
    assert head.endswith("OF LIMIT") and first.split()[-2:] == ["40%", "bandwidth"] and second.split()[-1] == "-"


def test_a_line_of_blocks_falls_as_the_latency_does() -> None:
    points = [LatencyPoint(0, 10, 8.0), LatencyPoint(1, 20, 4.0), LatencyPoint(2, 40, 1.0), LatencyPoint(3, 50, 1.0)]
    assert sparkline(points, 5) == "█▆▆▁▁"
    assert sparkline(points[:1], 3) == "▁▁▁"
    assert sparkline([]) == ""


def test_a_watched_queue_has_bars_and_the_latency_unless_a_job_cannot_be_read(workspace: Workspace, tuned: Any) -> None:
    screen = Screen(workspace, lambda: None, verbose=False, watch=True)
    first = lines(screen.look(), 120)
    assert first == lines(screen.look(), 120)
    assert "PROGRESS" in first[0] and "█" in first[1] and "▁" in first[1]
    tuned.spec.write_text("?")
    screen = Screen(workspace, lambda: [tuned], verbose=False, watch=True)
    assert "forecast" not in "\n".join(lines(screen.look(), 200))


def test_one_job_has_its_forecast(workspace: Workspace, tuned: Any) -> None:
    screen = Screen(workspace, lambda: [tuned], verbose=False, watch=False)
    shown = lines(screen.look(), 200)
    assert shown[-1].startswith("forecast of the tasks' sum: after one more hour")
    assert any(line.endswith("OF LIMIT") for line in shown)
    assert "PROGRESS" not in shown[0]


def test_once_the_whole_model_was_timed_it_is_shown_and_the_forecast_is_of_it(workspace: Workspace, tuned: Any) -> None:
    formats.write(tuned.confirmed, Confirmation.of([EntryTimes("main", (3.0,), 1.0, "onnxruntime", 2.0)], 1.0))
    shown = lines(Screen(workspace, lambda: [tuned], verbose=False, watch=False).look(), 200)
    assert "MODEL" in shown[0] and "3.000 ms" in shown[1]
    assert any(line.startswith("the whole model takes 3 ms: 1 ms in its tasks and 2 ms outside") for line in shown)
    assert shown[-1].startswith("forecast: after one more hour") and ", 2." in shown[-1]


@pytest.mark.parametrize("width", [24, 52])
def test_on_a_narrow_screen_rows_become_lines_and_nothing_is_lost(width: int) -> None:
    running = RunningStage(1, 2, 3, "build", (0,), 2.5)
    daemon = DaemonInfo({"pid": 1}, 0.0, "predictive", cpus=(0, 1), running=(running,))
    job = replace(JOB, target="simulated", eta_seconds=4000.0, deadline=1e9)
    shown = [render.queue([job], daemon, sparks={1: "█▁"}), render.tasks(job)]
    printed = lines(shown, width)
    assert max(map(len, printed)) <= width
    said = " ".join(" ".join(printed).split())
    for part in ("ID 1", "TARGET simulated", "STATE waiting", "TRIALS 8/64", "ETA 1h07m", "WHY waits for a CPU"):
        assert f" {part} " in f" {said} "
    for part in ("cpu 0", "build", "idle", "12.5 us", "75.0%"):
        assert part in said
    assert LONG in said.replace(" ", "")
