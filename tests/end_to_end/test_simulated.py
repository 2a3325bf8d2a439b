"""The real daemon, workers, locks and files on devices that do not exist."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from autotune.commands.logs import events
from autotune.storage import formats
from autotune.storage.formats import StageFile
from autotune.storage.journal import StageDone, StageEvent, StageFailed
from autotune.storage.paths import JobPaths, Workspace

from .conftest import User


def intervals(jobs: list[JobPaths], workspace: Workspace, kind: str) -> list[tuple[float, float]]:
    """When the stages of a kind ran, from the journals."""
    spans = []
    for job in jobs:
        for event in events(job, follow=False):
            if isinstance(event, StageEvent) and event.kind == kind:
                spans.append((event.at - event.seconds, event.at))
    return spans


def test_two_devices_drain_three_jobs_with_every_trial_once(workspace, make_job, simulate):
    simulate(devices=2, speed=50.0)
    jobs = [
        make_job(id, f"net{id}", target="simulated", target_key=f"simulated-{id}", seed=id, trials=40)
        for id in (1, 2, 3)
    ]
    user = User(workspace.root)
    user.ok("daemon", "run", "--drain")
    assert [(job["state"], job["trials_done"]) for job in user.status()] == [("done", 40)] * 3
    assert set(user.trials().values()) == {1}
    assert sum(user.trials().values()) == 120
    assert not list(workspace.root.glob("jobs/*/artifacts/*"))
    together = [(a, b) for a in intervals(jobs, workspace, "measure") for b in intervals(jobs, workspace, "measure")]
    assert any(a[0] < b[0] < a[1] for a, b in together), "two devices measure at a time"


def test_a_job_ends_when_its_stages_have_run_for_as_long_as_they_may(workspace, make_job, simulate):
    simulate(devices=1, speed=20.0)
    make_job(1, target="simulated", trials=100_000, within_s=3.0)
    user = User(workspace.root)
    user.ok("daemon", "run", "--drain")
    (job,) = user.status()
    assert (job["state"], job["reason"]) == ("done", "time limit reached")
    assert 0 < job["trials_done"] < 100_000
    assert not list(workspace.root.glob("jobs/*/artifacts/*")), "the last round was finished"


def test_a_job_ends_when_the_whole_model_was_found_to_be_fast_enough(workspace, make_job, simulate):
    simulate(devices=2, speed=100.0)
    job = make_job(1, target="simulated", trials=100_000, stop_at_ms=1.7)
    user = User(workspace.root)
    user.ok("daemon", "run", "--drain")
    (shown,) = user.status()
    assert shown["state"] == "done" and shown["reason"].startswith("target latency reached: the whole model takes 1.")
    confirmed = [event.summary for event in events(job, follow=False) if getattr(event, "kind", "") == "confirm"]
    met = [summary["met"] for summary in confirmed if "met" in summary]  # two rounds may end, and be confirmed, at once
    assert met[-1] and not all(met)
    assert 0 < shown["trials_done"] < 100_000
    assert sum(user.trials().values()) == shown["trials_done"]
    again = make_job(2, "again", tasks=1, target="simulated", trials=100_000, stop_at_ms=3.0)
    formats.write(again.stage(0, 0), StageFile(0, 0, "compile"))  # as `submit` does where trials are there
    user.ok("daemon", "run", "--drain")
    shown = user.status()[-1]
    assert shown["state"] == "done" and shown["reason"].startswith("target latency reached: the whole model takes ")
    done = [event.kind for event in events(again, follow=False) if isinstance(event, StageDone)]
    assert done == ["compile", "confirm"], "the trials there are suffice"


def test_a_command_runs_once_when_a_job_has_ended_also_for_the_next_daemon(workspace, make_job, simulate):
    simulate(devices=1, speed=100.0)
    command = 'echo "$AUTOTUNE_STATE $AUTOTUNE_REASON $AUTOTUNE_TRIALS"'
    jobs = [make_job(id, f"net{id}", target="simulated", trials=8, on_end=command) for id in (1, 2)]
    for job in jobs:
        job.folder.chmod(0o755)
        job.spec.chmod(0o644)
    user = User(workspace.root)
    user.ok("cancel", "net2")
    user.ok("daemon", "run", "--drain")
    user.ok("daemon", "run", "--drain")
    time.sleep(0.5)  # nobody waits for the commands
    done, cancelled = (job.on_end_log.read_text() for job in jobs)
    assert done == "done budget-used 8\n"
    assert cancelled.startswith("cancelled cancelled ")  # it shares its tasks, so trials of the other job may count


def searches_alone(workspace: Workspace) -> bool:
    """Whether a second search, of a worker that is warm, has run for so long that all of the first round is over."""
    try:
        stages = json.loads(workspace.daemon_info.read_text())["running"]
    except (FileNotFoundError, KeyError):
        return False
    running = [(stage["kind"], stage["round"] > 0, time.time() - stage["started_at"] > 1.5) for stage in stages]
    return running == [("search", True, True)]


def workers_of(daemon: int) -> list[int]:
    children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    return [int(pid) for pid in children if b"autotune.workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_worker_that_is_stopped_costs_a_stage_that_is_tried_again(workspace, make_job, simulate):
    simulate(devices=1, speed=100.0, search_s=300.0)  # 3 s: what is said to run is a second old
    with workspace.config.open("a") as file:
        file.write("[search]\ntimeout_s = 6.0\n[daemon]\nstop_grace_s = 0.5\n")
    job = make_job(1, "net", target="simulated", tasks=1, trials=16)
    user = User(workspace.root)
    daemon = user.start("daemon", "run", "--drain")
    try:
        while not searches_alone(workspace):
            assert daemon.poll() is None
            time.sleep(0.02)
        (stopped,) = workers_of(daemon.pid)
        os.kill(stopped, signal.SIGSTOP)
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.communicate()
    failed = [event for event in events(job, follow=False) if isinstance(event, StageFailed)]
    assert [(event.kind, "worker did not answer" in event.detail) for event in failed] == [("search", True)]
    assert not Path(f"/proc/{stopped}").exists()
    assert [(job["state"], job["trials_done"]) for job in user.status()] == [("done", 16)]
    assert sorted(user.trials().values()) == [1] * 16
