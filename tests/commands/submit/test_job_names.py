"""The name that a user gives a job is one word, and means no other jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.commands.submit.publish import check_name, free_name
from autotune.errors import BadInput
from autotune.storage.paths import JobPaths, Workspace


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "-a", "net\n", "é", "x" * 65])
def test_a_text_with_other_signs_is_no_name(workspace: Workspace, name: str) -> None:
    with pytest.raises(BadInput, match="use up to 64 letters"):
        check_name(workspace, name)


@pytest.mark.parametrize("name", ["all", "last", "7", "007", "3-5"])
def test_a_word_that_means_jobs_on_a_command_line_is_no_name(workspace: Workspace, name: str) -> None:
    with pytest.raises(BadInput, match="would mean other jobs"):
        check_name(workspace, name)
    assert free_name(workspace, Path(f"{name}.onnx")) == f"model-{name}"


def test_a_word_of_plain_letters_is_a_name_unless_a_job_has_it(
    workspace: Workspace, make_job: Callable[..., JobPaths]
) -> None:
    for name in ("a-b.c_d", "7up", "x" * 64):
        check_name(workspace, name)
    make_job(1, "net")
    with pytest.raises(BadInput, match="a job named 'net' already"):
        check_name(workspace, "net")
    assert free_name(workspace, Path("net.onnx")) == "net-2"
