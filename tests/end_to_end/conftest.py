"""A user at the command line: real models, the real daemon, real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.commands.job_status import snapshot
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

MadeOnce = Callable[[str, Callable[[Path], object]], Path]
SCRIPTS = Path(__file__).parents[2] / "scripts"
QUICK = "[measure]\nrepeats = 1\nmin_repeat_ms = 1\ndisturbed_again = 0\n"


@dataclass(frozen=True)
class User:
    """Someone who works in one workspace, whose locks are their own."""

    root: Path

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "autotune", "--workspace", str(self.root), *map(str, words)]

    def run(self, *words: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout, check=False)

    def ok(self, *words: object) -> str:
        """Run a command that must succeed, and return its standard output."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def status(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = json.loads(self.ok("status", "--json"))["jobs"]
        return jobs

    def reason(self) -> str:
        """The reason of the only job, read without a process: tests that wait ask again and again."""
        (job,) = snapshot(Workspace(self.root))
        return job.reason

    def trials(self) -> Counter[tuple[str, str]]:
        """How often each candidate of each task stands in the tuning logs."""
        return Counter(
            (log.name, record["hash"])
            for log in self.root.glob("logs/tuning/*/*.jsonl")
            for record in RecordLog(log, *FORMAT).read()
        )

    def settle(self, text: str) -> None:
        """Add lines to autotune.toml. A section on measurements takes the place of the one that is there."""
        path = self.root / "autotune.toml"
        before = path.read_text()
        path.write_text((before.replace(QUICK, "") if "[measure]" in text else before) + text)


def make_user(root: Path, whole_model: bool = False) -> User:
    """A user in a new workspace, whose measurements are short.

    Their jobs do not time the whole model unless asked to: that takes seconds.
    """
    root.mkdir(exist_ok=True)
    job = f"[job]\nwhole_model = {str(whole_model).lower()}\n"
    machine = f'[machine]\nlock_dir = "{root}/locks"\n'
    (root / "autotune.toml").write_text(job + machine + QUICK + "[export]\nrepeats = 1\n")
    return User(root)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return make_user(tmp_path / "workspace")


@pytest.fixture
def other_user(tmp_path: Path) -> User:
    return make_user(tmp_path / "other")


@pytest.fixture(scope="session")
def models(made_once: MadeOnce) -> Path:
    """A folder with tiny_cnn.onnx and mlp.onnx."""
    make = [sys.executable, str(SCRIPTS / "models" / "make_models.py"), "tiny_cnn", "mlp", "--output"]
    return made_once("models", lambda folder: subprocess.run([*make, str(folder)], check=True, capture_output=True))


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A job that needs no TVM: 64 configurations of a command that ends at once."""
    path = tmp_path / "space.toml"
    path.write_text(
        "parameters.a = [1, 2, 3, 4, 5, 6, 7, 8]\nparameters.b = [1, 2, 3, 4, 5, 6, 7, 8]\n"
        "[measure]\nrepeats = 1\ncommand = ['echo', '{a}{b}']\n"
    )
    return path


@pytest.fixture(scope="session")
def submitted(made_once: MadeOnce, models: Path) -> Path:
    """A workspace with a job of mlp.onnx that has not been started, to be copied."""
    words = ("submit", models / "mlp.onnx", "--trials", 2, "--trials-per-round", 2)
    return made_once("submitted", lambda folder: make_user(folder).ok(*words))


@pytest.fixture(scope="session")
def tuned(made_once: MadeOnce, models: Path) -> User:
    """A workspace in which tiny_cnn was tuned with 10 trials; for looking at, not for changing."""

    def make(folder: Path) -> None:
        user = make_user(folder, whole_model=True)
        user.ok("submit", models / "tiny_cnn.onnx", "--trials", 10, "--trials-per-round", 2)
        user.ok("daemon", "run", "--drain")

    return User(made_once("tuned", make))


@pytest.fixture(scope="session")
def exported(tuned: User, made_once: MadeOnce) -> autotune.Exported:
    """The library of tiny_cnn with its source. Its kernels were timed again, and the untuned one beside it."""

    def make(folder: Path) -> None:
        autotune.open_job("last", tuned.root).export(folder, source=True, untuned=True, retime=True)

    return autotune.Exported.open(made_once("exported", make))
