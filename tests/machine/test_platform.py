"""A platform that autotune was never tested on is refused, in one line, before anything is done."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from autotune.commands.submit.publish import Submission, submit
from autotune.config import Config
from autotune.errors import MachineProblem, ModelError
from autotune.storage.paths import Workspace


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


@pytest.mark.usefixtures("arm")
def test_arm_is_refused_unless_the_user_insists(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineProblem, match="this is Linux on aarch64"):
        submit(workspace, Config(), Submission(Path("net.onnx")), lambda step: None)
    assert not list(workspace.jobs.iterdir())
    monkeypatch.setenv("AUTOTUNE_UNTESTED_PLATFORM", "1")
    with pytest.raises(ModelError, match="cannot read net.onnx"):
        submit(workspace, Config(), Submission(Path("net.onnx")), lambda step: None)


def test_on_this_one_the_model_is_what_is_looked_at_next(workspace: Workspace) -> None:
    with pytest.raises(ModelError, match="cannot read net.onnx"):
        submit(workspace, Config(), Submission(Path("net.onnx")), lambda step: None)
