"""Jobs that have ended: the daemon keeps next to nothing of them, and still retries them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from autotune.config import load_config
from autotune.daemon.clock import DaemonClock
from autotune.daemon.job_queue import Change
from autotune.daemon.loop import Daemon
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import TimedOut
from autotune.planning.planned_job import PlannedJob
from autotune.storage import formats
from autotune.storage.formats import Control
from autotune.storage.job_files import read_state
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.watch import nudge

LIMIT_S = 60.0


def held() -> set[int]:
    """The ids of the jobs that this process has in memory, for the daemon or for its planner."""
    gc.collect()
    jobs = [item for item in gc.get_objects() if isinstance(item, (QueuedJob, PlannedJob))]
    return {item.id if isinstance(item, QueuedJob) else item.view.id for item in jobs}


class Looking(DaemonClock):
    """Calls a function whenever the daemon waits."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def wait(self, descriptors: Sequence[int], timeout_s: float) -> list[int]:
        self.look()
        return super().wait(descriptors, timeout_s)


def test_what_has_ended_is_let_go_and_is_there_for_a_retry(
    workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]
) -> None:
    simulate(devices=2, speed=1000.0)
    jobs = [make_job(id, f"net{id}", tasks=1, target="simulated", target_key="simulated", trials=8) for id in (1, 2, 3)]
    daemon = Daemon(workspace, load_config(workspace.config), until=time.time() + LIMIT_S)
    asked = False
    let_go = list[set[int]]()

    def look() -> None:
        nonlocal asked
        states = [read_state(job) for job in jobs]
        if [state.state for state in states] != ["done"] * 3 or states[0].retries_seen < asked:
            return
        let_go.append(held())
        if let_go[-1]:
            return
        if asked:
            daemon.until = time.time()
        else:
            asked = True
            formats.write(jobs[0].control, Control(retries=1))
            nudge(workspace.jobs)

    daemon.clock = Looking(look)
    gc.freeze()  # what the tests before have left would be looked through each time
    with suppress(TimedOut):
        daemon.run()
    gc.unfreeze()
    assert read_state(jobs[0]).retries_seen == 1, "nobody noticed the retry"
    assert let_go[-1] == set()


def test_two_changes_together_are_those_of_the_jobs_of_both() -> None:
    one, two, none = Change(True, frozenset({1})), Change(True, frozenset({2})), Change()
    assert one | two == Change(True, frozenset({1, 2}))
    assert (one | none, none | one, none | none) == (one, one, none)
