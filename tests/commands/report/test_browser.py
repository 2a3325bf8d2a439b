"""The page in a real browser: it renders, reports no error, asks for nothing, and fits its window."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

import pytest

from autotune.commands.report.facts import gather, to_json
from autotune.commands.report.page import page
from autotune.storage.formats import KINDS, Trial
from autotune.storage.journal import StageDone, append
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

NOW = 1_700_000_300.0
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--hide-scrollbars")
if BROWSER is None:
    warnings.warn("NO BROWSER: the page of a report was not tried in one; install chromium", stacklevel=1)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="NO BROWSER: the page of a report was not tried; install chromium"
)


def browse(file: Path, folder: Path, *options: str) -> tuple[str, str]:
    """What the browser writes to its output and to its log."""
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", *QUIET]
    words += ["--enable-logging=stderr", *options, file.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@pytest.fixture
def written(workspace: Workspace, tuned: JobPaths, tmp_path: Path) -> Path:
    file = tmp_path / "page.html"
    file.write_text(page(gather(workspace, [tuned], NOW), whole=True))
    return file


@needs_browser
@pytest.mark.parametrize("look", [(), ("--blink-settings=preferredColorScheme=0", "--window-size=360,800")])
def test_the_browser_has_nothing_to_complain_of(written: Path, tmp_path: Path, look: tuple[str, ...]) -> None:
    picture = tmp_path / "picture.png"
    _, log = browse(written, tmp_path / "profile", f"--screenshot={picture}", *look)
    assert "CONSOLE" not in log
    assert picture.stat().st_size > 10_000


@needs_browser
def test_the_browser_would_have_complained(written: Path, tmp_path: Path) -> None:
    written.write_text(written.read_text().replace("</main>", '<img src="https://example.org/x.png"></main>'))
    _, log = browse(written, tmp_path / "profile", f"--screenshot={tmp_path / 'picture.png'}")
    assert "CONSOLE" in log and "Content Security Policy" in log


@needs_browser
def test_the_page_is_as_wide_as_a_narrow_window(written: Path, tmp_path: Path) -> None:
    # The policy of the page forbids scripts, and the browser has no other way to tell a width.
    text = re.sub(r"<meta http-equiv[^>]*>", "", written.read_text())
    measure = "<script>document.title = `${document.documentElement.scrollWidth} ${innerWidth}`</script>"
    written.write_text(text.replace("</body>", f"{measure}</body>"))
    document, _ = browse(written, tmp_path / "profile", "--window-size=500,800", "--dump-dom")
    widths = re.search(r"<title>(\d+) (\d+)</title>", document)
    assert widths is not None and int(widths[1]) <= int(widths[2])


class _Tables(HTMLParser):
    """The rows of a page's tables, by the section that they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, list[list[str]]] = {}
        self._section = ""
        self._cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._section = dict(attrs).get("id") or ""
        elif tag == "tr":
            self.sections.setdefault(self._section, []).append([])
        elif tag == "td":
            self.sections[self._section][-1].append("")
        self._cell = tag == "td"

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.sections[self._section][-1][-1] += data


def tables(text: str) -> dict[str, list[list[str]]]:
    parser = _Tables()
    parser.feed(text)
    return {name: [row for row in rows if row] for name, rows in parser.sections.items()}


def test_the_numbers_of_the_page_are_those_of_the_json(workspace: Workspace, tuned: JobPaths, written: Path) -> None:
    (job,) = json.loads(json.dumps(to_json(gather(workspace, [tuned], NOW))))["jobs"]
    shown = tables(written.read_text())
    tasks = [(int(row[0]), int(row[4]), int(row[5]), *map(float, row[6:9])) for row in shown["job-1-tasks"]]
    assert tasks == [
        (task["index"], task["trials"], task["failed"], task["best_us"], 100 * task["share"], task["gflops"])
        for task in job["tasks"]
    ]  # fmt: skip
    least_us = {kernel["task"]: kernel["least_us"] / kernel["calls"] for kernel in job["references"]["kernels"]}
    assert [float(row[9]) for row in shown["job-1-tasks"]] == [
        pytest.approx(100 * least_us[task["name"]] / task["best_us"], rel=1e-3) for task in job["tasks"]
    ]
    assert [row[10] for row in shown["job-1-tasks"]] == ["arithmetic", "bandwidth"]
    latency = [(float(row[0]), int(row[1]), float(row[2])) for row in shown["job-1-latency"]]
    assert latency == [(point["seconds"], point["trials"], point["latency_ms"]) for point in job["latency"]]
    assert [(row[0], float(row[1])) for row in shown["job-1-references"]] == [
        ("exported library", job["references"]["tuned_ms"]),
        ("ONNX Runtime", job["references"]["others_ms"]["ONNX Runtime"]),
        ("untuned", job["references"]["untuned_ms"]),
    ]
    assert [float(row[4]) for row in shown["job-1-stages"]] == [stage["seconds"] for stage in job["stages"]]
    most = max(job["tasks"], key=lambda task: task["share"])
    assert [(int(row[0]), float(row[1]), *row[2:]) for row in shown["job-1-knob_values"]] == [
        (most["index"], trial["us"], *trial["values"]) for trial in most["knob_values"]
    ]
    assert {row[0]: float(row[1]) for row in shown["job-1-wall_time"]} == pytest.approx(
        {name: seconds for name, seconds in job["parts"].items() if seconds}, rel=1e-3
    )


def test_the_page_stands_alone_its_answers_come_first_and_every_chart_has_its_numbers(written: Path) -> None:
    text = written.read_text()
    assert re.findall(r"""(?:src|href|action|data)\s*=\s*["'](?!#)""", text) == []
    assert re.findall(r"url\((?!#)", text) == [] and "@import" not in text and "<script" not in text
    assert "http:" not in text and "https:" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#|labelledby=")([^")]+)', text)) <= set(ids)
    sections = re.findall(r"<section.*?</section>", written.read_text(), flags=re.DOTALL)
    drawn = [part for part in sections if "<svg" in part]
    assert len(drawn) == 9
    for part in drawn:
        assert re.search(r"</h3>\s*<p>[^<]{20,}", part) and "<td" in part and "aria-label" in part
    before = written.read_text().split("<nav")[0]
    assert "takes most of the model" in before and "One more hour of tuning should save" in before


def test_every_kind_of_stage_is_drawn(workspace: Workspace, tuned: JobPaths) -> None:
    for place, kind in enumerate(KINDS):
        at = NOW - 100 + place
        append(tuned.journal, StageDone(kind=kind, began=at, at=at + 1, seconds=1.0, cpus=(0,), device="cpu"))
    text = page(gather(workspace, [tuned], NOW), whole=True)
    assert len(tables(text)["job-1-stages"]) == 7 + len(KINDS)
    assert all(text.count(f"round 0: {kind}, 1.0 s") >= 1 for kind in KINDS)


def test_names_are_text(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    paths = make_job(model="/m/<script>alert(1)</script>$x_$\x07.onnx")
    text = page(gather(workspace, [paths], NOW), whole=True)
    assert "<script" not in text and "&lt;script&gt;" in text and "\x07" not in text


def test_the_page_of_a_queue_leads_to_each_job(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    jobs = [make_job(1, "a"), make_job(2, "b")]
    jobs[1].spec.unlink()
    text = page(gather(workspace, jobs, NOW), whole=False)
    assert [row[:4] for row in tables(text)["queue"]] == [["1", "a", "llvm", "waiting"], ["2", "b", "", "failed"]]
    assert 'href="#job-2"' in text and 'id="job-2"' in text


def test_the_page_of_a_thousand_trials_and_thirty_tasks_is_small(
    workspace: Workspace, make_job: Callable[..., JobPaths], make_trial: Callable[..., Trial]
) -> None:
    paths = make_job(tasks=30, trials=1020)
    rng = random.Random(0)
    with patch("os.fsync"):
        for task in range(30):
            us = [3000.0 * rng.random() * 0.95**n for n in range(34)]
            trials = [make_trial(task, n, time_us, NOW - 200 + n, 2 ** (n % 5)) for n, time_us in enumerate(us)]
            TuningLog(workspace.tuning_log("llvm-test", f"{task:016x}").records).add(trials)
        for number in range(500):
            at = NOW - 280 + number / 2
            append(paths.journal, StageDone(kind="build", began=at, at=at + 1, seconds=1.0, cpus=tuple(range(64))))
    text = page(gather(workspace, [paths], NOW), whole=True)
    assert 100_000 < len(text.encode()) < 1_500_000
    assert len(tables(text)["job-1-stages"]) == 500
