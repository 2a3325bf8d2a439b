"""A space file takes the options of any job, and refuses those that say how a model is read or computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import strategies
from autotune.cli import _run
from autotune.options import TuningOptions, declared
from autotune.storage.formats import JobSpec, read
from autotune.storage.paths import Workspace

OF_ANY_JOB = {
    "name": ["n"],
    "trials": ["3"],
    "trials_per_round": ["2"],
    "priority": ["1"],
    "seed": ["7"],
    "fresh": [],
    "deadline": ["07:00"],
    "within_s": ["5m"],
    "stop_at_ms": ["1ms"],
    "on_end": ["true"],
    "strategy": ["random"],
    "sampler": ["adaptive"],
}
OF_MODELS = {
    "target": ["cuda"],
    "inputs": ["x=1x3"],
    "dims": ["batch=2"],
    "values": ["rate=16000"],
    "winograd": [],
    "precision": ["bf16"],
    "calibrate": ["samples.npz"],
    "max_drop": ["1%"],
    "accuracy": ["python score.py"],
    "plan": ["plan.json"],
    "memory_mb": ["64MB"],
    "context_tokens": ["512"],
    "activations": ["int8"],
}
FLAGS = {name: option.flag or f"--{name.replace('_', '-')}" for name, option in declared()}


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.toml"
    path.write_text('parameters.a = [1, 2, 3]\n[measure]\ncommand = ["echo", "{a}"]\n')
    for name in ("plan.json", "samples.npz"):
        (tmp_path / name).write_bytes(b"")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, which the words of `submit` need not name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def submit(folder: Path, space: Path, *words: str) -> int:
    return _run(["--workspace", str(folder), "submit", str(space), *words])


def test_every_option_is_of_any_job_or_of_models() -> None:
    assert sorted(OF_ANY_JOB | OF_MODELS) == sorted(name for name, _ in declared(TuningOptions))


@pytest.mark.parametrize("name", OF_MODELS)
def test_an_option_of_models_is_refused_by_its_name(
    folder: Path, space: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    flag = "--no-winograd" if name == "winograd" else FLAGS[name]
    assert submit(folder, space, flag, *OF_MODELS[name]) == 2
    said = capsys.readouterr().err
    assert f"{FLAGS[name]} is for models" in said and said.count("\n") == 1
    assert not Workspace(folder).job_list()


@pytest.mark.parametrize("name", OF_ANY_JOB)
def test_an_option_of_any_job_is_taken(folder: Path, space: Path, name: str) -> None:
    assert submit(folder, space, FLAGS[name], *OF_ANY_JOB[name]) == 0
    assert len(Workspace(folder).job_list()) == 1


def test_a_strategy_in_the_settings_is_that_of_commands_unless_it_is_one_of_models(
    folder: Path, space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(folder, space, "--strategy", "evolutionary") == 2
    assert "--strategy evolutionary works on schedules of TVM" in capsys.readouterr().err
    assert not Workspace(folder).job_list()
    for given, taken in (("evolutionary", strategies.DEFAULT), ("genetic", "genetic")):
        (folder / "autotune.toml").write_text(f'[search]\nstrategy = "{given}"\n')
        assert submit(folder, space, "--json", "--name", f"{given}-job") == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["name"] == f"{given}-job"
        assert (f"commands are tuned with {strategies.DEFAULT}" in said.err) == (given != taken)
        assert read(JobSpec, Workspace(folder).job_list()[-1].spec).strategy == taken
