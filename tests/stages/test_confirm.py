"""What a confirmation says: how long the whole model took, and whether that is the latency to stop at."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import Any

import pytest

from autotune.config import Config
from autotune.devices import Simulated
from autotune.stages import compile, confirm
from autotune.stages.on_simulated import SimulatedBench
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation, EntryTimes, read_confirmation
from autotune.storage.formats import StageFile
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace

from .conftest import Make, kinds, stage_of


def confirmed(workspace: Workspace, paths: JobPaths) -> dict[str, Any]:
    """Compile the model in a round, and time it."""
    stage = stage_of(workspace, paths)
    assert compile.run(stage) == {"compiled": True}
    return confirm.run(replace(stage, file=formats.read(StageFile, paths.stage(0, 3))))


def test_a_level_is_written_down_met_or_not_and_the_round_ends(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    summary = confirmed(workspace, paths)
    assert summary["met"] is False and summary["latency_ms"] > 4.0 and summary["estimate_ms"] == pytest.approx(3.8)
    assert (0, 4, "search") in kinds(paths) and (0, 3, "confirm") not in kinds(paths)
    last = read_confirmation(paths)
    assert last is not None and last.latency_ms == summary["latency_ms"]
    spec = read_spec(paths)
    know(1, 1300.0)
    assert not compile.is_due_at_once(workspace, paths, spec, Config()), "the whole model takes longer than its tasks"
    know(1, 1000.0)
    assert compile.is_due_at_once(workspace, paths, spec, Config())


def test_what_was_met_is_not_confirmed_again(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(8.0)
    know(0, 1000.0)
    know(1, 1000.0)
    assert confirmed(workspace, paths)["met"] is True
    assert not compile.is_due_at_once(workspace, paths, read_spec(paths), Config())


def test_an_overtaken_library_is_not_timed(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    stage = stage_of(workspace, paths)
    compile.run(stage)
    other = Confirmation((5.0,), 3.8, time.time())
    formats.write(paths.confirmed, other)
    assert confirm.run(stage) == {"skipped": True}
    assert read_confirmation(paths) == other and (0, 4, "search") in kinds(paths)


def test_what_was_measured_meanwhile_is_confirmed_too(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(2.4)
    know(0, 1000.0)
    know(1, 680.0)
    stage = stage_of(workspace, paths)
    compile.run(stage)
    know(1, 400.0)
    assert confirm.run(stage)["met"] is False
    assert (0, 3, "compile") in kinds(paths)


@pytest.mark.parametrize(
    "content", ["", "{", '{"format":"autotune-confirmation","version":1,"times_ms":[],"estimate_ms":1,"at":0}']
)
def test_a_damaged_confirmation_is_as_good_as_none(job: Any, content: str) -> None:
    paths = job(4.0)
    paths.confirmed.write_text(content)
    assert read_confirmation(paths) is None


def test_a_library_that_was_lost_is_compiled_again(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    stage = stage_of(workspace, paths)
    compile.run(stage)
    shutil.rmtree(stage.artifacts)
    assert confirm.run(stage) == {"recompile": True}
    assert (0, 3, "compile") in kinds(paths)


def test_the_reference_is_timed_once(
    workspace: Workspace, make_job: Make, know: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def time_model(_: Any, library: Any, tasks_ms: Any, processes: int, reference: bool) -> list[EntryTimes]:
        asked.append((processes, reference))
        of_reference = ("onnxruntime", 1.5) if reference else ("", None)
        return [EntryTimes("main", (2.0, 2.5, 9.0), tasks_ms[0], *of_reference)]

    monkeypatch.setattr(Simulated, "runs_models", True)
    monkeypatch.setattr(SimulatedBench, "time_model", time_model)
    paths = make_job(target="simulated")
    know(0, 1000.0)
    know(1, 500.0)
    assert confirmed(workspace, paths) == {"latency_ms": 2.5, "slowest_ms": 9.0, "estimate_ms": 2.0}
    last = read_confirmation(paths)
    assert last is not None
    formats.write(paths.confirmed, replace(last, at=0.0))
    know(0, 500.0)
    confirmed(workspace, paths)
    last = read_confirmation(paths)
    assert last is not None and last.entries == (EntryTimes("main", (2.0, 2.5, 9.0), 1.5, "onnxruntime", 1.5),)
    assert last.entries[0].outside_ms == 1.0
    assert asked == [(3, True), (3, False)]


def test_a_model_whose_tasks_take_nanoseconds_is_confirmed_once(
    workspace: Workspace, make_job: Make, know: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_model(_: Any, library: Any, tasks_ms: Any, processes: int, reference: bool) -> list[EntryTimes]:
        return [EntryTimes("main", (0.006, 0.007, 0.006), tasks_ms[0])]

    monkeypatch.setattr(Simulated, "runs_models", True)
    monkeypatch.setattr(SimulatedBench, "time_model", time_model)
    paths = make_job(target="simulated", trials=2)
    know(0, 0.06)
    know(1, 0.05)
    confirmed(workspace, paths)
    assert (0, 3, "compile") not in kinds(paths)
