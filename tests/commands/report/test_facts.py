"""Everything that a report says of a job, read from its files."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import cli
from autotune.commands import references
from autotune.commands.durations import parse_duration, parse_latency
from autotune.commands.job_status import snapshot
from autotune.commands.report.facts import JobReport, gather, to_json
from autotune.commands.report.sections import sections
from autotune.commands.wall_time import PARTS
from autotune.options import InputSpec
from autotune.storage import formats
from autotune.storage.formats import Entry, ShapeBinding
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

NOW = 1_700_000_300.0


def only(workspace: Workspace) -> JobReport:
    (job,) = gather(workspace, workspace.job_list(), NOW).jobs
    return job


def test_a_workspace_copied_elsewhere_says_the_same(workspace: Workspace, tuned: JobPaths, tmp_path: Path) -> None:
    copy = Workspace(tmp_path / "elsewhere")
    shutil.copytree(workspace.root, copy.root)
    before = to_json(gather(workspace, [tuned], NOW))
    after = to_json(gather(copy, copy.job_list(), NOW))
    assert after["jobs"] == before["jobs"] and after["workspace"] == str(copy.root)


def test_a_report_has_the_numbers_of_status_and_changes_nothing(workspace: Workspace, tuned: JobPaths) -> None:
    before = {path: path.stat().st_mtime_ns for path in workspace.root.rglob("*")}
    only(workspace)
    assert {path: path.stat().st_mtime_ns for path in workspace.root.rglob("*")} == before
    job = only(workspace)
    (shown,) = snapshot(workspace)
    assert job.latency_ms == shown.latency_ms == job.latency[-1].latency_ms == 1.0
    for task, status in zip(job.tasks, shown.tasks, strict=True):
        assert (task.trials, task.best_us, task.share, task.gflops) == (
            status.trials, status.best_us, status.share, status.gflops)  # fmt: skip
    assert [task.share for task in job.tasks] == [0.5, 0.5]
    assert [task.gflops for task in job.tasks] == [1000.0, 2000.0]
    assert job.trials == 48
    assert [(item.stage, item.kind, item.count) for item in job.failures] == [("build", "timeout", 3)]
    assert [run.succeeded for run in job.stages] == [True] * 6 + [False]
    assert (job.stages[1].began, job.stages[1].seconds, job.stages[1].cpus) == (2.0, 4.0, (0, 1))
    assert job.references is not None
    assert job.references.named == {"exported library": 2.0, "ONNX Runtime": 2.5, "untuned": 40.0}
    assert job.tasks[0].knobs[0].importance == pytest.approx(1.0)
    (told,) = to_json(gather(workspace, [tuned], NOW))["jobs"]
    assert told["forecast"]["hour"]["trials"] > 1000 and told["forecast"]["latency_ms"] == 1.0


def test_a_new_job_has_a_report_and_one_that_cannot_be_read_says_why(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    paths = make_job()
    job = only(workspace)
    assert (job.latency_ms, job.latency, job.references, job.stages, job.trials) == (None, (), None, (), 0)
    paths.spec.unlink()
    job = only(workspace)
    assert job.settings is None and "spec.json is missing" in job.job.reason


# Options that do not change the job, the name, which a second job cannot have, and `--dim`, which has its own test.
NOT_REPEATED = {"name", "dims", "dry_run", "quiet", "as_json", "yes"}


def test_the_command_that_repeats_a_job_gives_every_option_of_the_first(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    seven = time.mktime((2026, 3, 1, 7, 0, 0, 0, 0, -1))
    make_job(
        name="a-b", model="/m odels/x.onnx", seed=7, sampler="adaptive", winograd=False, precision="fp16", priority=-3,
        deadline=seven, within_s=90.0, stop_at_ms=5.0, on_end="mail me", values={"sr": 16000.0}, trials_per_round=8,
            plan="plan.toml", memory_mb=64.0, calibrate="samples.npz", max_drop=0.01,
            accuracy="python 'my score.py'", context_tokens=4096, activations="int8",
    )  # fmt: skip
    settings = only(workspace).settings
    assert settings is not None
    words = shlex.split(settings.commands[0])
    assert words[:3] == ["autotune", "submit", "/m odels/x.onnx"]
    command: Any = cli._load("submit")
    parsed = command.make_context("submit", words[2:], obj=workspace)
    given = {key for key in parsed.params if parsed.get_parameter_source(key).name == "COMMANDLINE"}
    assert given == parsed.params.keys() - NOT_REPEATED
    assert {key: parsed.params[key] for key in given - {"target"}} == {
        "model": "/m odels/x.onnx", "seed": 7, "trials": "64", "strategy": "evolutionary", "sampler": "adaptive",
        "winograd": False, "fresh": True, "precision": "fp16", "priority": -3, "trials_per_round": 8,
        "deadline": "07:00", "within_s": "90s", "stop_at_ms": "5ms", "on_end": "mail me",
        "inputs": ("x=1x8:float32",), "values": ("sr=16000",), "plan": "plan.toml", "memory_mb": "64MB",
        "calibrate": "samples.npz", "max_drop": "0.01", "accuracy": "python 'my score.py'",
        "context_tokens": 4096, "activations": "int8",
    }  # fmt: skip
    assert settings.commands[2] == "autotune export last --output a-b-again"


@pytest.mark.parametrize("seconds", [90.0, 1234567.5, 3.6e12, 1e-9])
def test_the_command_that_repeats_a_job_has_all_digits_of_its_ends_and_names_boards(
    workspace: Workspace, make_job: Callable[..., JobPaths], seconds: float
) -> None:
    make_job(within_s=seconds, stop_at_ms=seconds, values={"sr": 1234567.0}, board="phone")
    settings = only(workspace).settings
    assert settings is not None and "--target phone " in settings.commands[0]
    words = shlex.split(settings.commands[0])
    given = dict(itertools.pairwise(words))
    assert parse_duration(given["--within"]) == seconds and parse_latency(given["--stop-at"]) == seconds
    assert given["--value"] == "sr=1234567"


def test_a_report_as_json_has_the_documented_keys(workspace: Workspace, make_job: Callable[..., JobPaths]) -> None:
    make_job(7, "vgg", submitted_at=NOW - 1)
    (job,) = json.loads(json.dumps(to_json(gather(workspace, workspace.job_list(), NOW))))["jobs"]
    assert job.pop("parts").keys() == set(PARTS)
    assert [task.pop("name") for task in job.pop("tasks")] == ["conv0", "conv1"]
    assert job.pop("settings")["seed"] == 0
    assert "no daemon" in job.pop("reason")
    assert job == {
        "id": 7,
        "name": "vgg",
        "state": "waiting",
        "submitted_at": NOW - 1,
        "until": NOW,
        "wall_s": 1.0,
        "trials": 0,
        "budget": 64,
        "latency_ms": None,
        "latency": [],
        "references": None,
        "entries": [],
        "failures": [],
        "stages": [],
        "forecast": None,
        "whole_model": None,
        "of_commands": False,
    }


def entry(size: int, *weights: int) -> Entry:
    shape = (InputSpec("x", (1, size), "float32"),)
    return Entry(f"n={size}", shape, weights, ShapeBinding(f"n={size}", (), {"n": size, "batch": 1}))


def test_each_of_several_shapes_has_its_latency(
    workspace: Workspace, tuned: JobPaths, make_job: Callable[..., JobPaths]
) -> None:
    spec = replace(read_spec(tuned), entries=(entry(8, 1, 0), entry(16, 0, 2)))
    formats.write(tuned.spec, spec)
    latencies = [{"name": "n=8", "latency": {"tuned_ms": 0.75}}, {"name": "n=16", "latency": {"tuned_ms": 1.5}}]
    references.remember(tuned, {"entries": latencies, "threads": 2, "exported_at": NOW})
    job = only(workspace)
    assert job.latency_ms == 1.0 and job.references is not None and job.references.tuned_ms == 2.25
    assert [(shape.name, shape.latency_ms, shape.exported_ms) for shape in job.entries] == [
        ("n=8", 0.5, {"tuned": 0.75}),
        ("n=16", 0.5, {"tuned": 1.5}),
    ]
    (shapes,) = (part for part in sections(job) if part.name == "shapes")
    assert shapes.columns[-1] == "exported library in ms"
    assert shapes.rows[1] == ("n=16", "x=1x16:float32", 0.5, None, 1.5)
    assert job.settings is not None
    assert "--dim batch=1 --dim n=8,16" in job.settings.commands[0] and "--input" not in job.settings.commands[0]
