"""A worker tries each target once, and goes when its TVM is changed."""

from __future__ import annotations

import gc
import importlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import MachineProblem
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import Ready, RunStage, StageReport, receive, send
from autotune.stages.stage import Stage
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend import load
from autotune.tvm_backend.kernels import machine_check
from autotune.tvm_backend.load import installation
from autotune.workers.worker import Worker, _check_fitness, _load, _run


@pytest.fixture(autouse=True)
def own_limits() -> Iterator[None]:
    """Give the process back what a stage takes from it: the tests after these would be short of memory."""
    memory = resource.getrlimit(resource.RLIMIT_DATA)
    cpus = os.sched_getaffinity(0)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, memory)
    os.sched_setaffinity(0, cpus)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands for TVM, for the real one is not ours to change."""
    file = tmp_path / "site" / "stand_in_for_tvm" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.syspath_prepend(file.parents[1])
    monkeypatch.setattr(load, "_PACKAGES", ("stand_in_for_tvm",))
    importlib.import_module("stand_in_for_tvm")
    return file


def test_an_installation_that_is_replaced_or_removed_is_noticed(package: Path) -> None:
    loaded = installation()
    assert loaded == installation()
    new = package.with_name("new")
    new.write_text("")
    new.replace(package)
    assert installation() != loaded
    package.unlink()
    assert installation() != loaded


def test_what_a_worker_has_loaded_is_no_garbage_for_its_children(workspace: Workspace) -> None:
    gc.unfreeze()
    try:
        _load("simulated", workspace)
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_a_target_is_tried_once_and_again_after_it_failed(
    workspace: Workspace, make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_job(target="llvm")
    asked: list[object] = []

    def check(target: object) -> None:
        asked.append(target)
        if len(asked) == 1:
            raise MachineProblem("no linker")

    def stage() -> Stage:
        return Stage.load(workspace, Config(), RunStage(0, paths.folder.name, 0, 0, "search", (0,), 60.0))

    monkeypatch.setattr(machine_check, "check_machine", check)
    known = set[str]()
    with pytest.raises(MachineProblem):
        _check_fitness(stage(), known)
    assert not known
    _check_fitness(stage(), known)
    _check_fitness(stage(), known)
    assert len(asked) == 2


def test_a_worker_whose_tvm_was_changed_hands_its_stage_back_and_goes(workspace: Workspace) -> None:
    requests, commands = os.pipe()
    answers, replies = os.pipe()
    send(commands, RunStage(3, "0001-net", 0, 0, "search", (0,), 60.0))
    Worker(workspace, MessageReader(requests), replies, [(0, 0, 0)]).serve()
    ready, report = receive(MessageReader(answers))
    assert isinstance(ready, Ready) and isinstance(report, StageReport)
    assert (report.id, report.outcome) == (3, "unfit")
    assert report.reason == "TVM was changed while its worker was running; a new worker is started"
    for descriptor in (requests, commands, answers, replies):
        os.close(descriptor)


def test_a_stage_whose_file_somebody_has_removed_says_so_in_a_line(
    workspace: Workspace, make_job: Callable[..., JobPaths], capfd: pytest.CaptureFixture[str]
) -> None:
    paths = make_job(target="simulated")
    paths.stage(0, 0).unlink()
    request = RunStage(0, paths.folder.name, 0, 0, "search", (0,), 60.0)
    report = _run(workspace, request, set(), lambda: None, None)
    assert (report.outcome, report.reason) == ("failed", f"{paths.stage(0, 0)} was removed")
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_that_nobody_expected_is_told_by_its_last_line(
    workspace: Workspace, make_job: Callable[..., JobPaths], capfd: pytest.CaptureFixture[str]
) -> None:
    def began() -> None:
        raise ZeroDivisionError("in a\nin b\nwhat it was\n")

    request = RunStage(4, make_job(target="simulated").folder.name, 0, 0, "search", (0,), 60.0)
    report = _run(workspace, request, set(), began, None)
    assert (report.id, report.outcome, report.reason) == (4, "failed", "ZeroDivisionError: what it was")
    assert "Traceback" in capfd.readouterr().err
