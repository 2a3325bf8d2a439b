"""The trials of any job are a file in T4, in which no two candidates have the same configuration.

`tests/data/t4-results-schema.json` is schema/T4/1.0.0/results-schema.json of Kernel Tuner 1.5.0 (Apache-2.0).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
from typer.testing import CliRunner, Result

from autotune.cli import app
from autotune.storage.formats import SIMULATED, Failure, TaskSpec, Trial
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog

DATA = Path(__file__).parents[1] / "data"
SCHEMA = json.loads((DATA / "t4-results-schema.json").read_text())


def export(workspace: Workspace, file: Path, *jobs: str) -> Result:
    words = ["--workspace", str(workspace.root), "trials", "export", str(file), *jobs, "--format", "t4"]
    return CliRunner().invoke(app, words)


def results(file: Path) -> list[dict[str, Any]]:
    document = json.loads(file.read_text())
    jsonschema.validate(document, SCHEMA)
    found: list[dict[str, Any]] = document["results"]
    return found


def log(workspace: Workspace, task: TaskSpec, *trials: Trial, key: str = "llvm") -> None:
    TuningLog(workspace.tuning_log(key, task.hash).records).add(trials)


def test_a_kernel_is_its_task_its_sketch_and_its_knobs(workspace: Workspace, make_job: Any, tmp_path: Path) -> None:
    (tiled,) = TuningLog(DATA / "trials.jsonl").trials()
    instructions, decided = tiled.trace
    other_sketch = replace(tiled, hash="0" * 15 + "1", trace=[instructions[1:], decided[:0]])
    failed = replace(tiled, hash="0" * 15 + "2", times_us=(), failure=Failure("build", "error", "no"), trace=[[], []])
    job = make_job(tasks=2, target_key="llvm")
    first, second = (TaskSpec(**task) for task in json.loads(job.spec.read_text())["tasks"])
    log(workspace, first, tiled, other_sketch)
    log(workspace, second, failed)
    assert "wrote 3 trials" in export(workspace, tmp_path / "net_T4.json", "net").stdout
    found = results(tmp_path / "net_T4.json")
    configurations = [result["configuration"] for result in found]
    assert [one.pop("task") for one in configurations] == [first.hash, first.hash, second.hash]
    assert len({one.pop("sketch") for one in configurations}) == 3
    assert configurations[0]["matmul loop 1, tile of 4"] == "8x4x2x2"
    assert found[0]["times"]["runtimes"] == [us / 1e3 for us in tiled.times_us]
    assert [result["invalidity"] for result in found] == ["correct", "correct", "compile"]


def test_commands_are_their_values(workspace: Workspace, make_job: Any, tmp_path: Path) -> None:
    job = make_job(tasks=1, target_key="llvm", metric={"name": "speed", "unit": "GB/s", "better": "larger"})
    (task,) = (TaskSpec(**task) for task in json.loads(job.spec.read_text())["tasks"])
    log(workspace, task, Trial("0" * 16, {"values": {"block": 64}}, [], (1e14,), None, "0001-net", 0, 5.0))
    export(workspace, tmp_path / "net_T4.json", "net")
    (result,) = results(tmp_path / "net_T4.json")
    assert result["configuration"] == {"block": 64} and result["measurements"][0]["value"] == 10.0


def test_is_of_one_job_that_was_measured(workspace: Workspace, make_job: Any, tmp_path: Path) -> None:
    make_job(1, "net", target_key="llvm")
    make_job(2, "played", target_key=f"{SIMULATED}x")
    refusals = {(): "name one", ("all",): "name one", ("net",): "no trials", ("played",): "simulated device"}
    for jobs, reason in refusals.items():
        refused = export(workspace, tmp_path / "net_T4.json", *jobs)
        assert refused.exit_code and reason in str(refused.exception) + refused.output
    assert not (tmp_path / "net_T4.json").exists()
