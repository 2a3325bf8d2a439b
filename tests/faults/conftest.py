"""A queue, the real daemon in it, and faults of its environment that come and go while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.commands.job_status import JobStatus, snapshot
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import TaskSpec
from autotune.storage.journal import StageFailed
from autotune.storage.journal import read as read_journal
from autotune.storage.paths import JobPaths, Workspace

from ..end_to_end.conftest import User, make_user, models  # noqa: F401
from ..waiting import until

HOOK = Path(__file__).with_name("hook")
TRIALS = 24
PER_ROUND = 6
LIMIT_S = 90.0
Make = Callable[..., JobPaths]


@dataclass
class Scene:
    """A workspace with jobs of one task each for simulated devices, and the daemon that serves it.

    Attributes:
        faults: The file of `hook/sitecustomize.py`: what goes wrong in the daemon and in all that it starts.
        log: What the daemon writes to standard error.
    """

    workspace: Workspace
    make_job: Make
    faults: Path
    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def user(self) -> User:
        return User(self.workspace.root)

    @property
    def locks(self) -> Path:
        return self.workspace.root.parent / "locks"

    def jobs(self, count: int, per_round: int = PER_ROUND) -> list[JobPaths]:
        return [self.job(id, per_round) for id in range(1, count + 1)]

    def job(self, id: int, per_round: int = PER_ROUND) -> JobPaths:
        """Publish a job. With all trials in one round it takes a second; a fault may strike between rounds."""
        task = (TaskSpec("conv", f"{id:016x}", 1, "1x8", 0.5, True),)
        return self.make_job(id, f"net{id}", task, "simulated", trials=TRIALS, trials_per_round=per_round, seed=id)

    def environment(self, **changes: str | None) -> dict[str, str]:
        path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {**os.environ, "FAULTS": str(self.faults), "PYTHONPATH": path, **changes}
        return {name: value for name, value in given.items() if value is not None}

    def daemon(self, *words: str, **changes: str | None) -> subprocess.Popen[bytes]:
        """Start a daemon, by default one that drains, with changes of its environment; None removes a variable."""
        command = self.user.command(*(words or ("daemon", "run", "--drain")))
        with self.log.open("ab") as log:
            self.started.append(subprocess.Popen(command, stderr=log, env=self.environment(**changes)))
        return self.started[-1]

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        until(holds, LIMIT_S, lambda: f"{self.said}\n{snapshot(self.workspace)}")

    def until_tuning(self) -> None:
        """Wait until the first trials are logged."""
        self.until(lambda: f"/{TRIALS} trials" in self.said)

    def until_it_goes_on(self) -> None:
        """Wait until the last pause is over."""
        self.until(lambda: self.said.rfind("goes on after: ") > self.said.rfind("paused: "))

    def until_paused(self, *words: str) -> None:
        """Wait until `status` says that the daemon pauses, for a reason that includes these words."""
        self.until(lambda: (info := running_daemon(self.workspace)) and all(word in info.trouble for word in words))

    def until_job_says(self, id: int, *words: str) -> None:
        """Wait until `status` gives a reason that includes these words for why a job does not go on."""
        self.until(lambda: all(word in self.status_of(id).reason for word in words))

    def status_of(self, id: int) -> JobStatus:
        return next(job for job in snapshot(self.workspace) if job.id == id)

    def states(self) -> dict[int, tuple[str, int]]:
        return {job.id: (job.state, job.trials_done) for job in snapshot(self.workspace)}

    def ends_well(self, daemon: subprocess.Popen[bytes], jobs: int, failed_stages: int = 0, spoilt: str = "") -> None:
        """The daemon drains its queue, every job has its budget, no trial is there twice, and nobody was blamed.

        But for so many stages, and for those that failed over the file that was spoilt.
        """
        assert daemon.wait(LIMIT_S) == 0, self.said
        assert "Traceback" not in self.said, self.said
        assert self.states() == {id: ("done", TRIALS) for id in range(1, jobs + 1)}, self.said
        assert sorted(self.user.trials().values()) == [1] * jobs * TRIALS
        events = [event for paths in self.workspace.job_list() for event in read_journal(paths.journal)]
        failures = [event.diagnosis for event in events if isinstance(event, StageFailed)]
        blamed = [diagnosis for diagnosis in failures if not spoilt or spoilt not in diagnosis]
        assert len(blamed) <= failed_stages, blamed


@pytest.fixture
def scene(workspace: Workspace, simulate: Callable[..., None], make_job: Make, tmp_path: Path) -> Iterator[Scene]:
    """A workspace in which a queue of two jobs takes a few seconds."""
    simulate(devices=2, speed=25.0)
    with workspace.config.open("a") as file:
        file.write("[daemon]\npoll_s = 0.1\nstop_grace_s = 2.0\n")
    scene = Scene(workspace, make_job, tmp_path / "faults", tmp_path / "daemon.log")
    yield scene
    for process in scene.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def user(tmp_path: Path) -> User:
    return make_user(tmp_path / "workspace")
