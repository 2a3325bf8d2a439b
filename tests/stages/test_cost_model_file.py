"""A cost model that is not what was trained is not read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autotune.processes.isolate import isolated
from autotune.stages import cost_model_file, trial_features
from autotune.storage.atomic import publish_json
from autotune.storage.paths import JobPaths
from autotune.storage.seals import COST_MODEL, digest, seal
from autotune.tvm_backend.search.cost_model import CostModel
from autotune.tvm_backend.search.features import WIDTH


@pytest.fixture
def trained(make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch) -> JobPaths:
    monkeypatch.setattr(cost_model_file, "_PUBLISHING_S", 0.0)
    paths = make_job()
    rows = [np.full((1, WIDTH), value, np.float32) for value in (1.0, 2.0)]
    model = CostModel.train(rows, [1.0, 0.5]).serialise()
    paths.cost_model.write_bytes(model)
    publish_json(paths.cost_model_meta, *cost_model_file._META, {"trials": 2, "seal": seal(COST_MODEL, digest(model))})
    return paths


def test_what_was_trained_is_intact_and_loads(trained: JobPaths) -> None:
    assert cost_model_file.is_intact(trained)
    assert CostModel.load(trained.cost_model, WIDTH) is not None


def test_a_model_of_a_version_with_other_features_is_trained_again(trained: JobPaths) -> None:
    assert cost_model_file.is_intact(trained)
    assert CostModel.load(trained.cost_model, WIDTH + 1) is None


@pytest.mark.parametrize("which", ["cost_model", "cost_model_meta"])
@pytest.mark.parametrize("how", ["torn", "flipped", "zeros", "empty", "missing", "folder"])
def test_a_damaged_one_is_not(trained: JobPaths, which: str, how: str) -> None:
    path = getattr(trained, which)
    data = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        flipped = data[:20] + bytes([data[20] ^ 1]) + data[21:]
        path.write_bytes({"torn": data[:-3], "flipped": flipped, "zeros": bytes(len(data)), "empty": b""}[how])
    assert not cost_model_file.is_intact(trained)


@pytest.mark.parametrize("data", [b"", b"{", b"binf", bytes(1000), b"{L\x00\x00", pickle.dumps(print)])
def test_a_crafted_model_with_its_seal_costs_its_process_at_most_and_is_forgotten_then(
    trained: JobPaths, data: bytes
) -> None:
    trained.cost_model.write_bytes(data)
    publish_json(trained.cost_model_meta, *cost_model_file._META, {"trials": 2, "seal": seal(COST_MODEL, digest(data))})
    assert cost_model_file.is_intact(trained)
    ((_, outcome),) = isolated(
        [trained], lambda: lambda paths: CostModel.load(paths.cost_model, WIDTH) is None, limit_s=60
    )
    assert outcome.kind == "crash" or outcome.value is True
    cost_model_file.forget_model(trained)
    assert not cost_model_file.is_intact(trained)


def test_a_model_that_another_user_trained_is_not_read(
    trained: JobPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not cost_model_file.is_intact(trained)


class Evil:
    """What a pickle may do as it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return (self.mark.touch, ())


def test_features_are_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "task.npz"
    rows = np.array([Evil(mark)], dtype=object)
    hashes = np.frombuffer(b'["a"]', np.uint8)
    np.savez(path, hashes=hashes, rows=rows, ends=[1], times_us=[1.0], allow_pickle=True)
    assert trial_features.read(path) == trial_features.TrialFeatures()
    assert not mark.exists()
    with np.load(path, allow_pickle=True) as stored:
        assert stored["rows"] is not None
    assert mark.exists(), "it was armed"


@pytest.mark.parametrize("how", ["torn", "flipped", "zeros", "empty", "folder", "missing"])
def test_damaged_features_are_none(tmp_path: Path, how: str) -> None:
    path = tmp_path / "task.npz"
    trial_features.write(path, trial_features.TrialFeatures(["a"], [np.ones((2, WIDTH), np.float32)], [1.0]))
    data = path.read_bytes()
    path.unlink()
    middle = len(data) // 2
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"torn": data[:-1], "flipped": flipped, "zeros": bytes(len(data)), "empty": b""}[how])
    assert trial_features.read(path) == trial_features.TrialFeatures()
