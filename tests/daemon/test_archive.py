"""Jobs that have ended: the daemon keeps next to nothing of them, and still retries them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import pytest

from autotune.config import load_config
from autotune.daemon.loop import Daemon
from autotune.daemon.queued_job import QueuedJob
from autotune.storage import formats
from autotune.storage.formats import Control, JobState
from autotune.storage.paths import JobPaths, Workspace

LIMIT_S = 60.0


class Watched(Daemon):
    """A daemon that notes which ledgers it holds, asks for a retry of job 1 once all have ended, and leaves then."""

    held: list[set[int]]
    ledgers: list[weakref.ref[QueuedJob]]
    asked: bool = False

    def _tick(self) -> None:
        super()._tick()
        self.held.append(set(self._queue.jobs))
        self.ledgers += map(weakref.ref, self._queue.jobs.values())
        if len(self._queue.archive) == 3 and not self.asked:
            self.asked = True
            formats.write(self.workspace.job(1, "net1").control, Control(retries=1))

    def _leaving(self) -> bool:
        return super()._leaving() or (self.asked and self._retried())

    def _retried(self) -> bool:
        return formats.read(JobState, self.workspace.job(1, "net1").state).retries_seen == 1


@pytest.fixture
def daemon(workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]) -> Watched:
    simulate(devices=2, speed=1000.0)
    for id in (1, 2, 3):
        make_job(id, f"net{id}", tasks=1, target="simulated", target_key="simulated", trials=8)
    daemon = Watched(workspace, load_config(workspace.config), until=time.time() + LIMIT_S)
    daemon.held, daemon.ledgers = [], []
    return daemon


def test_what_has_ended_is_let_go_and_is_there_for_a_retry(daemon: Watched) -> None:
    daemon.run()  # until its time is up, if nobody notices the retry
    assert daemon._retried()
    assert {1, 2, 3} in daemon.held
    gc.collect()
    assert daemon.ledgers and not any(ledger() for ledger in daemon.ledgers)
    assert daemon._dispatcher.planner is not None and not daemon._dispatcher.planner.jobs
    subjects = {subject for known in daemon._stage_times.estimates.known.values() for subject in known.subjects}
    assert subjects == {"simulated/0000000000000000"}, "those of tasks stay"
