"""Files of one job that cannot be used: it waits with a reason and goes on by itself, the others do not notice."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from autotune.storage import formats
from autotune.storage.formats import JobState
from autotune.storage.paths import JobPaths

from .conftest import Scene


def test_a_control_file_that_links_to_itself(scene: Scene) -> None:
    job, _ = scene.jobs(2)
    daemon = scene.daemon()
    scene.until_tuning()
    saved = job.control.read_bytes()
    job.control.unlink()
    job.control.symlink_to(job.control)
    os.utime(scene.workspace.jobs)
    scene.until(lambda: "leaving out job 1: cannot" in scene.said and "symbolic link" in scene.said)
    scene.until(lambda: scene.states()[2][0] == "done")
    job.control.unlink()
    job.control.write_bytes(saved)
    if daemon.wait(90) == 0 and scene.states()[1][0] != "done":  # there was nothing else to do
        daemon = scene.daemon()
    scene.ends_well(daemon, 2)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("EACCES read", "spec.json"),
        pytest.param("EIO read", "state.json", marks=pytest.mark.slow),
        pytest.param("ESTALE stat", "control.json", marks=pytest.mark.slow),
        pytest.param("EACCES scandir", "stages", marks=pytest.mark.slow),
        pytest.param("EIO write", "stages", marks=pytest.mark.slow),
        pytest.param("EACCES open", "stages", marks=pytest.mark.slow),
        ("EROFS mkdir", "artifacts"),
    ],
)
def test_a_file_of_one_job_that_is_refused(scene: Scene, fault: str, name: str) -> None:
    job, _ = scene.jobs(2)
    formats.write(job.state, JobState())  # a file that is not there is not read
    scene.faults.write_text(f"{fault} {job.folder / name}\n")
    daemon = scene.daemon("daemon", "run")
    scene.until(lambda: scene.states()[2][0] == "done")
    assert scene.states()[1][1] == 0
    assert str(job.folder / name) in scene.said, scene.said
    scene.faults.unlink()
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


@pytest.mark.parametrize(
    "spoil",
    [
        spec_to_pipe,
        spec_to_nonsense,
        pytest.param(spec_to_folder, marks=pytest.mark.slow),
        pytest.param(spec_of_another, marks=pytest.mark.slow),
    ],
)
def test_a_spec_that_is_spoilt_while_its_job_runs(scene: Scene, spoil) -> None:
    job, _ = scene.jobs(2)
    saved = job.spec.read_bytes()
    daemon = scene.daemon()
    scene.until_tuning()
    spoil(job)
    scene.until(lambda: "damaged" in scene.said)
    shutil.rmtree(job.spec) if job.spec.is_dir() else job.spec.unlink()
    job.spec.write_bytes(saved)
    assert daemon.wait(90) in (0, 1), scene.said
    scene.user.run("retry", 1)  # what was tried meanwhile may have counted as failed
    scene.ends_well(scene.daemon(), 2, spoilt=f"{job.spec}")


def test_a_folder_in_place_of_the_state_and_of_a_stage(scene: Scene) -> None:
    job, _ = scene.jobs(2)
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
    assert scene.user.ok("clean", "--finished").startswith("removed 1 job\n")
    assert daemon.wait(90) == 0, scene.said
    assert scene.states() == {2: ("done", 24)}
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
