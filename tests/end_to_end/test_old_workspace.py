"""A workspace of an older version is served, resumed, reported and cleaned.

`tests/data/workspace_v1` is what version 1 of the files left on the disk when its daemon was killed: job 1 is done,
job 2 is held, and job 3 is at its second round.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from .conftest import User

OLD = Path(__file__).parents[1] / "data" / "workspace_v1"


@pytest.fixture
def old(tmp_path: Path) -> User:
    """A user of a copy of the workspace, whose locks are their own, and whose devices are quicker."""
    root = tmp_path / "workspace"
    shutil.copytree(OLD, root)
    settings = (root / "autotune.toml").read_text().replace("speed = 100.0", "speed = 1000.0")
    assert "speed = 1000.0" in settings
    (root / "autotune.toml").write_text(settings.replace("[machine]", f'[machine]\nlock_dir = "{tmp_path / "locks"}"'))
    return User(root)


def test_its_jobs_are_shown_as_they_were_left(old: User) -> None:
    assert [(job["state"], job["reason"], job["trials_done"]) for job in old.status()] == [
        ("done", "budget used", 8),
        ("held", "held; `autotune release` continues it", 0),
        ("waiting", "no daemon is running; start one with `autotune daemon start`", 4),
    ]


def test_it_goes_on_where_it_stopped_and_is_reported_and_cleaned(old: User) -> None:
    before = old.trials()
    assert old.ok("release", "held") == "job 2 released\n"
    old.ok("daemon", "run", "--drain")
    assert [(job["state"], job["reason"], job["trials_done"]) for job in old.status()] == [
        ("done", "budget used", trials) for trials in (8, 8, 24)
    ]
    after = old.trials()
    assert not before - after and set(after.values()) == {1} and sum(after.values()) == 40
    old.ok("check")

    told = [line.split("  ", 1)[1] for line in old.ok("logs", "held").splitlines()]
    assert told[:2] == ["held", "released"], "one line of version 1 and one of version 2"
    assert told[-1] == "done: reason budget used"

    times = json.loads(old.ok("report", "all", "--json"))["jobs"]
    assert all(math.isclose(sum(job["parts"].values()), job["wall_s"], abs_tol=1e-6) for job in times)
    first = times[0]
    assert first["wall_s"] == pytest.approx(first["until"] - first["submitted_at"])
    assert min(first["parts"][kind] for kind in ("search", "build", "measure", "train")) > 0

    assert old.ok("clean", "--finished")
    assert old.status() == [] and old.trials() == after
