"""A workspace that an earlier commit wrote goes on to be used.

`tests/data/workspace-b84fd16c.tar.xz` has a tuned network, a tuned command, and a network whose daemon was killed after
4 of 12 trials. Its device is simulated, so that any machine serves it.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from .conftest import User

ARCHIVE = Path(__file__).parents[1] / "data" / "workspace-b84fd16c.tar.xz"


@pytest.fixture
def earlier(tmp_path: Path) -> User:
    root = tmp_path / "workspace"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    root.chmod(0o700)
    settings = root / "autotune.toml"
    settings.write_text(
        settings.read_text().replace("speed = 20", "speed = 500") + f'\n[machine]\nlock_dir = "{tmp_path}/locks"\n'
    )
    return User(root)


def test_its_jobs_and_trials_are_there(earlier: User) -> None:
    told = {job["name"]: (job["state"], job["trials_done"]) for job in earlier.status()}
    assert told == {"ended": ("done", 4), "commands": ("done", 4), "begun": ("waiting", 4)}
    assert earlier.run("check").returncode == 0


def test_a_job_that_was_killed_goes_on_and_keeps_its_trials(earlier: User) -> None:
    before = earlier.trials()
    earlier.ok("daemon", "run", "--drain")
    (begun,) = [job for job in earlier.status() if job["name"] == "begun"]
    assert (begun["state"], begun["trials_done"]) == ("done", 12)
    after = earlier.trials()
    assert before <= after and set(after.values()) == {1}


def test_what_was_found_is_exported(earlier: User, tmp_path: Path) -> None:
    earlier.ok("export", "commands", "--output", tmp_path / "best")
    assert (tmp_path / "best" / "best.toml").read_text().endswith("a = 3\nb = 1\n")


def test_the_trials_of_a_real_device_are_merged_into_a_new_workspace(earlier: User, tmp_path: Path) -> None:
    new = User(tmp_path / "new")
    new.root.mkdir(mode=0o700)
    new.ok("trials", "merge", earlier.root)
    merged = new.trials()
    assert merged <= earlier.trials() and sum(merged.values()) == 4
