"""A suite is read strictly and expanded; its points are jobs that start from nothing, each there once."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.commands import suite as suites
from autotune.commands import sweep
from autotune.commands.submit.publish import Submission
from autotune.commands.suite import Suite
from autotune.commands.sweep import Outcome
from autotune.config import Config
from autotune.errors import BadInput, ConfigError
from autotune.options import InputSpec
from autotune.settings import JobSettings
from autotune.storage.paths import Workspace

GOOD = """\
models = ["a.onnx", "b.onnx"]
targets = ["simulated"]
strategies = ["beam", "chameleon"]
trials = [100, 400]
seeds = [0, 1, 2]
[reference]
trials = 400
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a.onnx").write_bytes(b"a")
    (tmp_path / "b.onnx").write_bytes(b"b")
    path = tmp_path / "night.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def suite(file: Path) -> Suite:
    return suites.read(file, Config())


class TestASuite:
    def test_is_every_combination_once(self, suite: Suite) -> None:
        assert len(suite.points) == len({point.name for point in suite.points}) == 2 * 2 * 2 * 3
        first = suite.points[0]
        assert first.way[1:] == ("simulated", "beam", "greedy", 100) and first.seed == 0
        assert {point.way.sampler for point in suite.points if point.way.strategy == "chameleon"} == {"adaptive"}

    def test_has_no_point_twice_and_takes_what_it_leaves_out_from_the_workspace(self, file: Path) -> None:
        file.write_text('models = ["a.onnx"]')
        (point,) = suites.read(file, Config()).points
        assert point.way[1:] == ("llvm", Config().search.strategy, "greedy", 640)
        (point,) = suites.read(file, Config(job=JobSettings(trials=77))).points
        assert point.way.trials == 77
        file.write_text('models = ["a.onnx", "./a.onnx"]\nsamplers = ["", "greedy"]\nseeds = [1, 1]')
        assert len(suites.read(file, Config()).points) == 1

    def test_names_points_by_what_they_are_and_by_the_inputs_of_their_model(self, file: Path, suite: Suite) -> None:
        file.write_text(GOOD.replace("[0, 1, 2]", "[2, 3]"))
        again = suites.read(file, Config())
        shared = {point.name for point in suite.points} & {point.name for point in again.points}
        assert len(shared) == 8
        file.write_text(GOOD + '[inputs."a.onnx"]\ndim = ["sequence=128"]\n')
        given = suites.read(file, Config())
        same = [point.way.model.name for point, other in zip(given.points, suite.points, strict=True) if point == other]
        assert same == ["b.onnx"] * 12
        file.write_text(GOOD.replace("[0, 1, 2]", "[2, 3]"))
        (file.parent / "a.onnx").write_bytes(b"another model")
        changed = suites.read(file, Config())
        assert len({point.name for point in again.points} & {point.name for point in changed.points}) == 8

    def test_compares_with_the_most_similar_way_that_the_reference_allows(self, suite: Suite) -> None:
        assert len(suite.references) == 8
        for way, reference in suite.references.items():
            assert reference == way._replace(strategy="beam", sampler="greedy", trials=400)

    @pytest.mark.parametrize(
        ("old", "new", "wrong"),
        [
            ("strategies", "strategy", r":3: unknown key 'strategy' in the suite; there are models, targets, "),
            ('"b.onnx"', '"c.onnx"', r":1: there is no model .*c.onnx"),
            ('"beam"', '"quantum"', r":3: no strategy 'quantum'; there are "),
            ('["simulated"]', '["rocm"]', r":2: target 'rocm': kind is 'rocm'"),
            ("seeds = [0, 1, 2]", "seeds = []", r":5: 'seeds' names nothing"),
            ("seeds = [0, 1, 2]", 'samplers = ["best"]', r":5: no sampler 'best'"),
            ("[100, 400]", "[100, 0]", r":4: entry 2 of 'trials' in the suite must be at least 1, not 0"),
            ("[100, 400]", "100", r":4: 'trials' in the suite must be a list, not a whole number"),
            ("trials = 400", "trials = 7", r":6: \[reference\] is not one of the points"),
            ("trials = 400", "seed = 7", r":7: unknown key 'seed' in \[reference\]"),
            ('models = ["a.onnx", "b.onnx"]', "", r": 'models' is missing"),
            ("[reference]", '[inputs."c.onnx"]\n[reference]', r":6: 'c.onnx' is not one of the models"),
            ("[reference]", '[inputs."a.onnx"]\ninput = ["x"]\n[reference]', r":6: --input 'x' is not of the form"),
            ("[reference]", '[inputs."a.onnx"]\nd = []\n[reference]', r":7: unknown key 'd' in \[inputs.a.onnx\]"),
            ("[reference]", 'latency = "best"\n[reference]', r":6: 'latency' in the suite must be one of tasks, model"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, file: Path, old: str, new: str, wrong: str) -> None:
        file.write_text(GOOD.replace(old, new))
        with pytest.raises(ConfigError, match=wrong):
            suites.read(file, Config())


class TestResults:
    @pytest.fixture
    def outcomes(self, suite: Suite) -> dict[suites.Point, Outcome]:
        """Twice as fast with 400 trials as with 100; one point of the reference has failed."""
        by_point = {}
        for number, point in enumerate(suite.points):
            latency = (10.0 if point.way.trials == 100 else 5.0) + point.seed
            by_point[point] = Outcome(number + 1, "done", point.way.trials, latency)
        last = suite.points[-1]
        by_point[last] = Outcome(len(by_point), "failed", 3, None)
        return by_point

    def test_have_mean_and_spread_over_the_seeds(self, suite: Suite, outcomes: dict[suites.Point, Outcome]) -> None:
        summaries = {summary.way: summary for summary in sweep.summarise(suite, outcomes)}
        few = suite.points[0].way
        many = suite.points[3].way
        assert (summaries[few].mean_ms, summaries[few].spread_ms, summaries[few].ratio) == (11.0, 1.0, 11.0 / 6.0)
        assert (summaries[many].points, summaries[many].ratio) == (3, 1.0)
        assert summaries[suite.points[-1].way].points == 2

    def test_are_the_same_as_json_csv_and_page(self, suite: Suite, outcomes: dict[suites.Point, Outcome]) -> None:
        data = json.loads(json.dumps(sweep.to_json(suite, outcomes)))
        lines = list(csv.DictReader(io.StringIO(sweep.to_csv(suite, outcomes))))
        page = sweep.to_html(suite, outcomes)
        assert len(data["points"]) == len(lines) == 24 and len(data["ways"]) == 8
        assert [float(line["latency_ms"] or 0) for line in lines] == [
            point["latency_ms"] or 0 for point in data["points"]
        ]
        assert all(line["name"] in page for line in lines) and "11.000" in page
        assert data["points"][0]["ratio"] == pytest.approx(10.0 / 6.0)


def test_a_dry_run_shows_the_points_in_a_table_alone_and_changes_nothing(workspace: Workspace, file: Path) -> None:
    before = sorted(workspace.root.rglob("*"))
    words = ["--workspace", str(workspace.root), "sweep", str(file), "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.stdout.count("chameleon") >= 12
    assert "24 points, 6000 trials in all; 24 are not in the queue yet" in done.stderr
    for more in (["--json"], ["--csv"], ["--html", "sweep.html"]):
        refused = CliRunner().invoke(app, [*words, *more]).exception
        assert isinstance(refused, BadInput) and "--dry-run prints a table" in str(refused)
    assert sorted(workspace.root.rglob("*")) == before


def test_a_model_is_submitted_with_its_inputs(
    workspace: Workspace, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = 'input = ["ids=1x8:int64"]\ndim = ["batch=1"]\nvalue = ["rate=16000"]'
    file.write_text(f'models = ["a.onnx", "b.onnx"]\n[inputs."b.onnx"]\n{table}\n')
    asked: list[Submission] = []
    monkeypatch.setattr(sweep, "submit", lambda _w, _c, request, _p: asked.append(request))
    sweep._submit(workspace, Config(), suites.read(file, Config()), lambda step: None)
    plain, given = asked
    assert (plain.options.inputs, plain.options.dims, plain.options.values) == ({}, {}, {})
    assert given.options.inputs == {"ids": (InputSpec("ids", (1, 8), "int64"),)}
    assert (given.options.dims, given.options.values) == ({"batch": (1,)}, {"rate": 16000.0})


def test_points_with_a_job_are_not_submitted_again(
    workspace: Workspace, suite: Suite, make_job: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sweep, "submit", lambda _w, _c, request, _p: asked.append(request.options.name))
    make_job(1, suite.points[4].name)
    sweep._submit(workspace, Config(), suite, lambda step: None)
    assert asked == [point.name for point in suite.points if point is not suite.points[4]]
