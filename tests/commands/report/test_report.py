"""The command `report`: which files it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import cli
from autotune.commands import references
from autotune.commands.report import charts
from autotune.errors import BadInput, DiskProblem
from autotune.storage.formats import Entry
from autotune.storage.paths import JobPaths, Workspace


def run(workspace: Workspace, *words: str) -> None:
    command: Any = cli._load("report")
    command.invoke(command.make_context("report", list(words), obj=workspace))


def test_one_call_writes_the_page_the_tables_and_the_json(
    workspace: Workspace, tuned: JobPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    folder = tmp_path / "tables"
    run(workspace, "last", "--html", str(page), "--csv", str(folder), "--json")
    out, err = capsys.readouterr()
    (job,) = json.loads(out)["jobs"]
    assert page.read_text().startswith("<!doctype html>") and f"wrote {page}" in err
    assert {path.stem for path in folder.iterdir()} == {
        "latency", "references", "forecast", "tasks", "kernels", "curves", "knobs", "knob_values", "failures",
        "wall_time", "stages", "settings",
    }  # fmt: skip
    rows = list(csv.DictReader((folder / "tasks.csv").open()))
    assert [(row["job"], float(row["best in µs"])) for row in rows] == [("1", task["best_us"]) for task in job["tasks"]]
    points = list(csv.DictReader((folder / "latency.csv").open()))
    assert [float(row["latency in ms"]) for row in points] == [point["latency_ms"] for point in job["latency"]]


def test_a_report_without_an_option_is_the_table_of_the_time(
    workspace: Workspace, tuned: JobPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run(workspace, "1")
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["ID", "NAME", "STATE", "WALL"] and row.split()[:3] == ["1", "net", "done"]


def test_the_page_of_all_jobs_is_written_even_of_an_empty_queue(workspace: Workspace, tmp_path: Path) -> None:
    run(workspace, "--all", "--html", str(tmp_path / "page.html"))
    assert "0 jobs" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give JOB"),
        (("1", "--all"), "give JOB"),
        (("1", "--html", "model.onnx"), "give a file that ends with .html"),
        (("9", "--json"), "no job '9'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    workspace: Workspace, tuned: JobPaths, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        run(workspace, *words)


def test_a_file_in_place_of_the_folder_of_tables_stays_and_a_folder_that_is_not_there_is_named(
    workspace: Workspace, tuned: JobPaths, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(BadInput, match="give a folder"):
        run(workspace, "1", "--csv", str(tmp_path / "mine"))
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(DiskProblem, match="nowhere"):
        run(workspace, "1", "--html", str(tmp_path / "nowhere" / "page.html"))


def test_a_report_without_matplotlib_says_what_to_install(
    workspace: Workspace, tuned: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"autotune-tvm\[plots\]"):
        run(workspace, "1", "--html", "page.html")


def test_a_column_that_only_one_job_has_is_empty_for_the_others(
    workspace: Workspace, make_job: Callable[..., JobPaths], tmp_path: Path
) -> None:
    entries = tuple(Entry(f"n={size}", (), (1, 1)) for size in (8, 16))
    for id in (1, 2, 3):
        make_job(id, f"net-{id}", entries=entries)
    for id, runtime in ((2, "openvino"), (3, "onnxruntime")):
        latencies = [{"name": entry.name, "latency": {"tuned_ms": 1.0, f"{runtime}_ms": id}} for entry in entries]
        report = {"entries": latencies, "threads": 2, "exported_at": 1.0}
        references.remember(workspace.job(id, f"net-{id}"), report)
    run(workspace, "--all", "--csv", str(tmp_path))
    rows = list(csv.DictReader((tmp_path / "shapes.csv").open()))
    cells = [(row["job"], row["OpenVINO in ms"], row["ONNX Runtime in ms"]) for row in rows[::2]]
    assert cells == [("1", "", ""), ("2", "2.0", ""), ("3", "", "3.0")]
