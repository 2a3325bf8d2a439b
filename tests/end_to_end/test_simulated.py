"""The real daemon, workers, locks and files on devices that do not exist."""

from __future__ import annotations

from autotune.journal import records
from autotune.storage.paths import JobPaths, Workspace

from .conftest import User


def intervals(jobs: list[JobPaths], workspace: Workspace, kind: str) -> list[tuple[float, float]]:
    """When the stages of a kind ran, from the journals."""
    found = []
    for job in jobs:
        for record in records(workspace, job, follow=False):
            if record.get("kind") == kind:
                found.append((record["at"] - record["seconds"], record["at"]))
    return found


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
