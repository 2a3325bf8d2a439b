"""Trials for the prior: a schedule of each place where a padding can be computed, timed and logged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import autotune
from autotune.storage.paths import Workspace
from autotune.tvm_backend.search.cost_model import prior


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("spread_trials")


@pytest.mark.slow
def test_each_compute_location_has_a_candidate_and_what_is_timed_is_logged(
    script: ModuleType, load_script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "COUNT", 1)
    script.load_for_tuning("llvm")
    model = prior("llvm")
    assert model is not None
    load_script("random_layers").stem(random.Random(0)).save(tmp_path / "stem.onnx")
    (tmp_path / "workspace").mkdir()
    autotune.submit(tmp_path / "stem.onnx", workspace=tmp_path / "workspace", trials=1)
    ((stage, index),) = script.tasks_of(Workspace(tmp_path / "workspace"), "llvm")
    knobs = script.Knobs(stage.program_of(index), stage.target)
    candidates = script.spread(knobs, model, [])
    (place,) = [place for place, knob in enumerate(knobs.space.knobs) if knob.name.startswith("location")]
    configurations = [knobs.find(item.trace) for item in candidates]
    locations = {knobs.space.knobs[place].values[item[place]] for item in configurations if item}
    assert len(locations) > 8 and {-2, -1} < locations
    (time_us,) = script.measure(stage, index, knobs, model, 0)
    assert [trial.median_us for trial in stage.log(index).trials()] == [time_us]
