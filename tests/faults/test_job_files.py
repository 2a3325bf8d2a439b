"""Files of one job that cannot be used: it waits with a reason and goes on by itself, the others do not notice."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from autotune.commands.job_status import snapshot
from autotune.storage import formats
from autotune.storage.formats import JobState
from autotune.storage.paths import JobPaths

from .conftest import TRIALS, Scene

REFUSED = (
    ("EACCES read", "spec.json"),
    ("EIO read", "state.json"),
    ("ESTALE stat", "control.json"),
    ("EACCES scandir", "stages"),
    ("EIO write", "stages"),
    ("EACCES open", "stages"),
    ("EROFS mkdir", "artifacts"),
)
LATER = "later 10\n"  # what cannot be used is tried again after ten seconds


def test_jobs_of_which_a_file_is_refused_wait_and_go_on_and_another_ends(scene: Scene) -> None:
    *refused, _ = scene.jobs(len(REFUSED) + 1, per_round=TRIALS)
    paths = {fault: job.folder / fault[1] for fault, job in zip(REFUSED, refused, strict=True)}
    for job in refused:
        formats.write(job.state, JobState())  # a file that is not there is not read
    scene.faults.write_text("".join(f"{fault} {path}\n" for (fault, _), path in paths.items()))
    daemon = scene.daemon("daemon", "run")
    scene.until(lambda: scene.states()[len(REFUSED) + 1][0] == "done")
    scene.until(lambda: all(str(path) in scene.said for path in paths.values()))
    assert [trials for _, trials in scene.states().values()] == [0] * len(REFUSED) + [TRIALS]
    scene.faults.write_text(LATER)
    scene.until(lambda: {state for state, _ in scene.states().values()} == {"done"})
    daemon.terminate()
    assert daemon.wait(30) == 143
    scene.ends_well(scene.daemon(), len(REFUSED) + 1)


@pytest.mark.slow  # a variant of the test above
def test_a_control_file_that_links_to_itself(scene: Scene) -> None:
    job, _ = scene.jobs(2)
    daemon = scene.daemon("daemon", "run")
    scene.until_tuning()
    saved = job.control.read_bytes()
    job.control.unlink()
    job.control.symlink_to(job.control)
    os.utime(scene.workspace.jobs)
    scene.until(lambda: "leaving out job 1: cannot" in scene.said and "symbolic link" in scene.said)
    scene.until(lambda: scene.states()[2][0] == "done")
    job.control.unlink()
    job.control.write_bytes(saved)
    scene.faults.write_text(LATER)
    scene.until(lambda: scene.states()[1][0] == "done")
    daemon.terminate()
    assert daemon.wait(30) == 143
    scene.ends_well(scene.daemon(), 2)


def spec_to_folder(job: JobPaths) -> None:
    job.spec.unlink()
    job.spec.mkdir()


def spec_to_pipe(job: JobPaths) -> None:
    job.spec.unlink()
    os.mkfifo(job.spec)


def spec_to_nonsense(job: JobPaths) -> None:
    job.spec.write_bytes(b"\0" * 100)


def spec_of_another(job: JobPaths) -> None:
    job.spec.write_text(json.dumps({**json.loads(job.spec.read_text()), "id": 77}))


def test_specs_that_are_spoilt_while_their_jobs_run(scene: Scene) -> None:
    """What was tried meanwhile may have counted as failed."""
    spoils = (spec_to_pipe, spec_to_nonsense, spec_to_folder, spec_of_another)
    jobs = scene.jobs(len(spoils))
    saved = [job.spec.read_bytes() for job in jobs]
    daemon = scene.daemon()
    scene.until(lambda: all(f"net{job.id}" in scene.said for job in snapshot(scene.workspace)))
    for spoil, job in zip(spoils, jobs, strict=True):
        spoil(job)
    scene.until(lambda: all(f"{job.spec} is damaged" in scene.said for job in jobs))
    for job, content in zip(jobs, saved, strict=True):
        shutil.rmtree(job.spec) if job.spec.is_dir() else job.spec.unlink()
        job.spec.write_bytes(content)
    scene.faults.write_text(LATER)
    assert daemon.wait(90) in (0, 1), scene.said
    failed = [id for id, (state, _) in scene.states().items() if state == "failed"]
    scene.user.ok("retry", *failed) if failed else None
    scene.ends_well(scene.daemon(), len(spoils), spoilt="spec.json")


def test_a_folder_in_place_of_the_state_and_of_a_stage(scene: Scene) -> None:
    job, _ = scene.jobs(2, per_round=TRIALS)
    job.stage(0, 0).unlink()
    job.stage(0, 0).mkdir()
    job.state.mkdir()
    scene.ends_well(scene.daemon(), 2)


def test_a_job_that_is_cancelled_and_cleaned_within_one_poll_leaves_nothing(scene: Scene) -> None:
    with scene.workspace.config.open("a") as file:
        file.write("[devices.slow]\nkind = 'simulated'\nspeed = 0.5\n")
    scene.workspace.config.write_text(scene.workspace.config.read_text().replace("poll_s = 0.1", "poll_s = 3.0"))
    job, _ = scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.user.ok("cancel", 1)
    assert scene.user.ok("clean", 1).startswith("removed 1 job\n")
    assert daemon.wait(90) == 0, scene.said
    assert scene.states() == {2: ("done", TRIALS)}
    assert not job.folder.exists(), sorted(job.folder.rglob("*"))
    assert "Traceback" not in scene.said


def test_the_folder_of_all_jobs_that_cannot_be_read_for_a_while(scene: Scene) -> None:
    scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    scene.faults.write_text(f"EACCES scandir {scene.workspace.jobs}\n")
    os.utime(scene.workspace.jobs)
    scene.until(lambda: "paused: cannot" in scene.said)
    scene.faults.unlink()
    scene.ends_well(daemon, 2)
