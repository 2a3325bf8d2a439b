"""What only looks at the queue is quick, for it loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from autotune.storage.formats import JobState
from autotune.storage.paths import JobPaths, Workspace

HEAVY = {"tvm", "tvm_ffi", "xgboost", "numpy", "scipy", "onnx", "onnxruntime", "google", "ml_dtypes", "ray"}
RUN = """
import json, runpy, sys
try:
    runpy.run_module("autotune", run_name="__main__")
finally:
    sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(*words: str) -> tuple[set[str], str]:
    """The top-level modules that a command has loaded when it ends, and what it printed."""
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout


@pytest.fixture
def many_jobs(workspace: Workspace, make_job: Callable[..., JobPaths]) -> Workspace:
    for id in (*range(1, 50), 200):
        make_job(id, f"net{id}", tasks=3, state=JobState("running", trials_done=id))
    return workspace


@pytest.mark.parametrize("words", [["submit", "--help"], ["daemon", "run", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    modules, text = loaded(*words)
    assert not modules & HEAVY
    assert "Usage" in text


def test_the_status_of_many_jobs_loads_nothing_heavy(many_jobs: Workspace) -> None:
    modules, text = loaded("--workspace", str(many_jobs.root), "status")
    assert not modules & HEAVY
    assert "net1" in text and "net200" in text


def test_commands_on_jobs_load_no_heavy_package(many_jobs: Workspace) -> None:
    for words in (["hold", "1-3"], ["release", "2"], ["cancel", "4"], ["logs", "4"], ["clean", "--finished"]):
        assert not loaded("--workspace", str(many_jobs.root), *words)[0] & HEAVY


def test_the_daemon_loads_no_heavy_package() -> None:
    code = "import json, sys, autotune.daemon.loop; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {name.partition(".")[0] for name in json.loads(done.stdout)} & HEAVY
