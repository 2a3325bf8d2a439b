"""Scenarios are read strictly, outcomes come as a table, as JSON and as a chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.commands import gantt, simulate
from autotune.errors import BadInput, ConfigError, DiskProblem
from autotune.storage import formats, journal
from autotune.storage.formats import KINDS, JobSpec
from autotune.storage.journal import StageDone
from autotune.storage.paths import JobPaths, Workspace

GOOD = """\
seed = 3
[machine]
cpus = 4
devices = { cuda = 2 }
[[job]]
name = "net"
count = 3
tasks = 2
trials = 40
build = { mean = 15, spread = 0.3 }
[[job]]
device = "cpu"
submitted_s = 60
measure = 3.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(GOOD)
    return path


class TestReading:
    def test_it_describes_a_machine_and_jobs(self, file: Path) -> None:
        scenario = simulate.read(file)
        assert scenario.machine.kinds == {"cpu": ("cpu",), "cuda": ("cuda:0", "cuda:1")}
        assert [(job.id, job.name, job.device) for job in scenario.jobs] == [
            (1, "net-1", "cuda"), (2, "net-2", "cuda"), (3, "net-3", "cuda"), (4, "job", "cpu"),
        ]  # fmt: skip
        assert scenario.jobs[3].seconds["measure"].mean == 3.5 and scenario.jobs[3].submitted_at == 60

    @pytest.mark.parametrize(
        ("old", "new", "wrong"),
        [
            ("tasks = 2", "task = 2", r":8: unknown key 'task' in \[job\]; there are name, like, "),
            ("cpus = 4", f"cpus = {10**18}", r":3: 'cpus' in \[machine\] must be at most 1000000"),
            (
                "cuda = 2",
                f"cuda = {10**18}",
                r":4: 'cuda' in \[machine.devices\] must be a whole number from 1 to",
            ),
            ("count = 3", f"count = {10**18}", r":7: 'count' in \[job\] must be at most 1000000"),
            ("cpus = 4", "cpus = 0", r":3: 'cpus' in \[machine\] must be at least 1, not 0"),
            ("cuda = 2", "cuda = 0", r":4: 'cuda' in \[machine.devices\] must be a whole number from 1"),
            ('device = "cpu"', 'device = "rocm"', r":12: 'device' in \[\[job\]\]: the machine has no 'rocm'"),
            ("measure = 3.5", "measure = 0", r":14: 'measure' in \[\[job\]\] must be above 0"),
            ("measure = 3.5", "measure = true", r":14: 'measure' in \[job\] must be seconds, or a table"),
            ("measure = 3.5", 'measure = { journal = "x" }', r":14: 'measure' in \[\[job\]\]: no such stage in x"),
            ("seed = 3", "seed = ", r":1: "),
            ("count = 3", 'like = "jobs/0001-none"', r":7: 'like' in \[\[job\]\]: .*0001-none is no folder of a job"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, file: Path, old: str, new: str, wrong: str) -> None:
        file.write_text(GOOD.replace(old, new))
        with pytest.raises(ConfigError, match=wrong):
            simulate.read(file)

    @pytest.mark.parametrize(
        ("old", "new", "wrong"),
        [
            (
                "submitted_s = 60",
                "submitted_s = nan",
                r":13: 'submitted_s' in \[job\] must be a finite number below 2\^63",
            ),
            ("submitted_s = 60", "submitted_s = -1", r":13: 'submitted_s' in \[job\] must be at least 0, not -1"),
            (
                "submitted_s = 60",
                f"priority = {2**63}",
                r":13: 'priority' in \[job\] must be a finite number below 2\^63",
            ),
            ("measure = 3.5", "measure = inf", r":14: 'measure' in \[\[job\]\] must be above 0 and finite, not inf"),
            ("spread = 0.3", "spread = -1", r":10: 'spread' in \[job.build\] must be at least 0, not -1"),
            (
                "spread = 0.3",
                "width = 1",
                r":10: unknown key 'width' in \[job.build\]; there are mean, spread, journal",
            ),
            (GOOD, "job = [1]", r":1: entry 1 of 'job' in the scenario must be a table, not a whole number"),
            (GOOD, "job = 1", r":1: 'job' in the scenario must be an array of tables, not a whole number"),
        ],
    )
    def test_numbers_are_finite_and_tables_are_tables(self, file: Path, old: str, new: str, wrong: str) -> None:
        file.write_text(GOOD.replace(old, new))
        with pytest.raises(ConfigError, match=wrong):
            simulate.read(file)

    def test_a_missing_file_is_no_empty_scenario(self, tmp_path: Path) -> None:
        with pytest.raises(DiskProblem, match="cannot read"):
            simulate.read(tmp_path / "none.toml")
        (tmp_path / "empty.toml").write_text("")
        with pytest.raises(ConfigError, match="at least one"):
            simulate.read(tmp_path / "empty.toml")

    def test_lengths_come_from_a_journal_in_which_a_short_batch_counts_as_a_full_one(self, file: Path) -> None:
        for seconds, built, failed in ((2.0, 3, 1), (4.0, 16, 0)):
            summary = {"built": built, "failed": failed}
            stage = StageDone(kind="build", began=1.0, seconds=seconds, summary=summary)
            journal.append(file.parent / "journal.jsonl", stage)
        file.write_text(GOOD.replace("{ mean = 15, spread = 0.3 }", '{ journal = "journal.jsonl" }'))
        duration = simulate.read(file).jobs[0].seconds["build"]
        assert (duration.mean, duration.samples) == (6.0, (8.0, 4.0))
        assert {duration.draw(chance / 10) for chance in range(10)} == {4.0, 8.0}

    def test_a_job_is_like_one_that_was_tuned_but_for_what_is_said_of_it(
        self, workspace: Workspace, make_job: Callable[..., JobPaths]
    ) -> None:
        paths = make_job(name="net", tasks=3, trials=24)
        for index, kind in enumerate(KINDS):
            journal.append(paths.journal, StageDone(kind=kind, began=1.0, seconds=index + 1.0))
        file = workspace.root / "scenario.toml"
        file.write_text('[machine]\ncpus = 2\n[[job]]\nlike = "jobs/0001-net"\ntrials = 8\nmeasure = 0.5\n')
        (job,) = simulate.read(file).jobs
        assert (job.name, job.device, job.tasks, job.trials, job.trials_per_round) == ("net", "cpu", 3, 8, 8)
        assert [job.seconds[kind].mean for kind in KINDS[:4]] == [1.0, 2.0, 0.5, 4.0]

    @pytest.mark.parametrize(
        ("spec", "device"),
        [
            ({"target": {"kind": "llvm"}, "board": "phone"}, "rpc-phone"),
            ({"target": {"kind": "command"}}, "cpu"),
            ({"target": {"kind": "cuda", "arch": "sm_90"}}, "cuda"),
        ],
    )
    def test_a_job_like_another_is_measured_on_the_same_device(
        self, workspace: Workspace, make_job: Callable[..., JobPaths], spec: dict[str, Any], device: str
    ) -> None:
        paths = make_job(name="net")
        formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), **spec))  # of no device that is here
        for kind in KINDS:
            journal.append(paths.journal, StageDone(kind=kind, began=1.0, seconds=1.0))
        file = workspace.root / "scenario.toml"
        file.write_text(f'[machine]\ncpus = 2\ndevices = {{ {device} = 2 }}\n[[job]]\nlike = "jobs/0001-net"\n')
        (job,) = simulate.read(file).jobs
        assert job.device == device


class TestCommand:
    def run(self, *words: str) -> str:
        result = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    def test_it_prints_a_row_for_each_policy_or_json(self, file: Path) -> None:
        text = self.run(str(file))
        assert [name in text for name in ("sequential", "uncoordinated", "interleave", "predictive")] == [True] * 4
        assert "lower bound" in text and "idle" in text
        (outcome,) = json.loads(self.run(str(file), "--policy", "predictive", "--json"))
        assert outcome["policy"] == "predictive" and outcome["makespan"] >= outcome["bound"] > 0
        assert set(outcome["utilisation"]) == {"CPUs", "cuda"} and len(outcome["completions"]) == 4

    @pytest.mark.parametrize(
        ("words", "wrong"),
        [(("--policy", "fifo"), "no policy 'fifo'; there are sequential"), (("--gantt", "x.pdf"), "x.pdf: a chart is")],
    )
    def test_what_is_not_there_is_refused(self, file: Path, words: tuple[str, ...], wrong: str) -> None:
        with pytest.raises(BadInput, match=wrong):
            self.run(str(file), *words)

    @pytest.mark.parametrize("suffix", ["svg", "html"])
    def test_a_chart_is_sound_and_has_a_bar_for_each_cpu_of_a_stage(self, file: Path, suffix: str) -> None:
        chart = file.parent / f"chart.{suffix}"
        self.run(str(file), "--gantt", str(chart))
        text = chart.read_text()
        assert "cuda:1" in text and "CPU 3" in text and text.count("<rect") > 100
        (outcome,) = simulate.run(simulate.read(file), ["predictive"], record=True)
        assert len(outcome.spans) == outcome.stages
        assert ElementTree.fromstring(gantt.svg([outcome])).tag.endswith("svg")

    def test_a_picture(self, file: Path) -> None:
        pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
        from matplotlib.image import imread

        chart = file.parent / "chart.png"
        self.run(str(file), "--gantt", str(chart), "--policy", "predictive")
        pixels = (imread(chart)[:, :, :3] * 255).round().astype(int)
        search, build = ((pixels == colour).all(axis=2).sum() for colour in ((0x4E, 0x79, 0xA7), (0xF2, 0x8E, 0x2B)))
        assert search > 2000 and build > 2000, "a legend has a few hundred, and the bars are missing"

    def test_a_picture_without_the_library_for_it(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gantt, "find_spec", lambda name: None)
        with pytest.raises(BadInput, match=r"pip install 'autotune-tvm\[plots\]', or give an .svg file"):
            self.run(str(file), "--gantt", "chart.png")
