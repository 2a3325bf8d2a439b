"""Who works on which CPU when, seen from inside the workers: one or two real daemons on one machine."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import QUICK, User, make_user

RECORDER = Path(__file__).with_name("lease_recorder")
CPUS = sorted(os.sched_getaffinity(0))[:2]
BUDGET = ("--trials", 8, "--trials-per-round", 4)

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="there is nothing to share with one CPU")


@dataclass(frozen=True)
class Held:
    """What a worker leased, on which CPUs it ran, and from when to when on the monotonic clock."""

    begin: float
    end: float
    names: list[str]
    cpus: list[int]

    def overlaps(self, other: Held) -> bool:
        return self.begin < other.end and other.begin < self.end


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which workers write down what they held."""
    monkeypatch.setenv("PYTHONPATH", f"{RECORDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LEASE_RECORD", str(tmp_path / "record.jsonl"))
    return tmp_path / "record.jsonl"


def held(record: Path) -> list[Held]:
    return [Held(**json.loads(line)) for line in record.read_text().splitlines()]


def together(record: Path) -> list[tuple[Held, Held]]:
    """Pairs of stages that ran at one time."""
    return [(a, b) for a, b in itertools.combinations(held(record), 2) if a.overlaps(b)]


def settle(user: User, locks: Path, more: str = "") -> None:
    job = f"[job]\nwhole_model = false\n{QUICK}"
    (user.root / "autotune.toml").write_text(f'{job}[machine]\ncpu_slots = 2\nlock_dir = "{locks}"\n{more}')


def test_two_daemons_share_the_cpus_and_both_end(tmp_path, space, record):
    users = [make_user(tmp_path / name) for name in ("one", "two")]
    for user in users:
        settle(user, tmp_path / "locks")
        user.ok("submit", space, *BUDGET)
    daemons = [user.start("daemon", "run", "--drain") for user in users]
    assert [daemon.wait(300) for daemon in daemons] == [0, 0]
    assert [user.status()[0]["trials_done"] for user in users] == [8, 8]
    seen = held(record)
    assert all(item.names == [f"cpu-{cpu}" for cpu in item.cpus] for item in seen), "a stage leases what it runs on"
    assert sum(item.cpus == CPUS for item in seen) >= 4, "each measurement has both CPUs"
    assert [(a, b) for a, b in together(record) if set(a.cpus) & set(b.cpus)] == []


@pytest.mark.slow
def test_builds_go_on_beside_measurements_that_have_cpus_of_their_own(user, models, record, tmp_path):
    settle(user, tmp_path / "locks", "measure_cpus = 1\n")
    user.ok("submit", models / "tiny_cnn.onnx", "--trials", 12, "--trials-per-round", 4)
    user.ok("daemon", "run", "--drain")
    assert user.status()[0]["trials_done"] == 12
    (spec,) = user.root.glob("jobs/*/spec.json")
    assert json.loads(spec.read_text())["target"]["num-cores"] == 1
    assert sorted({tuple(item.cpus) for item in held(record)}) == [(CPUS[0],), (CPUS[1],)]
    assert any(a.cpus != b.cpus for a, b in together(record)), "something was built while something was measured"
    report = json.loads(user.ok("export", "last", "--output", tmp_path / "out", "--json"))
    assert report["threads"] == 1
