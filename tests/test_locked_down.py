"""Who may look into a workspace, and what becomes of the names of files that are submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.commands.submit.publish import Submission, publish
from autotune.config import Config
from autotune.errors import BadInput
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.storage.job_files import read_spec
from autotune.storage.paths import Workspace


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """The umask of someone who shares everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def enqueue(workspace: Workspace, file: str = "net.onnx", name: str | None = None) -> str:
    request = Submission(Path("models", file), TuningOptions(target="simulated", name=name))
    spec = publish(workspace, Config(), request, ImportAnswer({"kind": "simulated"}, "sim-test", (), (), ()))
    read_spec(workspace.job(spec.id, spec.name))
    return spec.name


def test_jobs_and_logs_are_their_owners_alone_unless_they_are_shared_on_purpose(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "new" / "workspace")
    enqueue(workspace)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (workspace.root, workspace.jobs, workspace.logs)}
    assert modes == {"workspace": 0o777, "jobs": 0o700, "logs": 0o700}
    workspace = Workspace(tmp_path)
    workspace.jobs.mkdir(mode=0o770)
    enqueue(workspace)
    assert workspace.jobs.stat().st_mode & 0o777 == 0o770


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("résumé net.onnx", "r_sum_net"),
        ("$(touch x);`y`.onnx", "touch_x_y"),
        ("-rf.onnx", "rf"),
        ("....", "model"),
        ("\n.onnx", "model"),
        ("last.onnx", "model-last"),
        ("7.onnx", "model-7"),
        ("a" * 250 + ".onnx", "a" * 48),
        ("模型.onnx", "model"),
    ],
)
def test_a_file_of_any_name_becomes_a_job_in_its_place(tmp_path: Path, file: str, name: str) -> None:
    workspace = Workspace(tmp_path)
    assert enqueue(workspace, file) == name
    assert [path.folder.parent for path in workspace.job_list()] == [workspace.jobs]


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "..", "a\0b", "a\nb", "a b", "x" * 65, "é"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="--name"):
        enqueue(Workspace(tmp_path), name=name)
    assert Workspace(tmp_path).job_list() == []
