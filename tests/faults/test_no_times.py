"""Every candidate of a job fails, and the machine is not to blame: the job has failed, and a retry goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.reasons import Reason
from autotune.storage import formats
from autotune.storage.formats import Failure, JobState, Trial
from autotune.storage.tuning_log import TuningLog

from .conftest import LIMIT_S, TRIALS, Scene


def record(path: Path, trial: Trial) -> None:
    """Make a trial the one that every candidate of a simulated device stands for."""
    path.unlink(missing_ok=True)
    path.with_suffix(".index").unlink(missing_ok=True)
    TuningLog(path).add([trial])


@pytest.mark.slow
def test_a_job_without_times_fails_and_a_retry_has_its_whole_budget(scene: Scene) -> None:
    recorded = scene.workspace.root / "recorded.jsonl"
    settings = scene.workspace.config
    settings.write_text(settings.read_text().replace("speed =", 'trials = "recorded.jsonl"\nspeed ='))
    failure = Failure("build", "error", "no such instruction")
    record(recorded, Trial("a" * 16, [], [], (), failure, "0009-other", 0, 1.0))
    job = scene.job(1)
    assert scene.daemon().wait(LIMIT_S) == 1, scene.said
    assert scene.states() == {1: ("failed", TRIALS)}, scene.said
    assert formats.read(JobState, job.state).reason == Reason(
        "no-time", detail="build: WorkerError: no such instruction"
    )
    assert scene.user.run("wait", "1").returncode == 1
    scene.user.ok("retry", "1")
    record(recorded, Trial("a" * 16, [], [], (5.0, 6.0, 7.0), None, "0009-other", 0, 1.0))
    assert scene.daemon().wait(LIMIT_S) == 0, scene.said
    assert scene.states() == {1: ("done", TRIALS)}, scene.said
    assert sorted(scene.user.trials().values()) == [1] * 2 * TRIALS
