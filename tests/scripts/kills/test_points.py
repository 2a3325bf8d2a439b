"""In a process that is to be killed every durable step is seen, and it dies at the one that was ordered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kills import points
from kills.run import HOOK, hooked

WORK = """
import sys
from pathlib import Path
from autotune.storage.atomic import publish_bytes, remove
from autotune.storage.record_log import RecordLog
root = Path(sys.argv[1])
publish_bytes(root / "file", b"content")
RecordLog(root / "log.jsonl", "test", 1).append([{"a": 1}])
open(root / "plain", "w").close()
remove(root / "file")
"""


class Victim:
    """A process that publishes, logs and removes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.number = 0

    def run(self, site: str = "", occurrence: int = 1, record: bool = False) -> int:
        self.number += 1
        self.root = self.folder / f"root{self.number}"
        self.orders = self.folder / f"orders{self.number}"
        self.root.mkdir()
        self.orders.mkdir()
        kills = [{"site": site, "occurrence": occurrence, "scope": "one"}] if site else []
        text = {"roots": [str(self.root)], "record": record, "kills": kills, "daemon_info": ""}
        (self.orders / points.ORDERS).write_text(json.dumps(text))
        environment = {**hooked(HOOK), points.VARIABLE: str(self.orders)}
        return subprocess.run([sys.executable, "-c", WORK, str(self.root)], env=environment, timeout=60).returncode

    def sites(self) -> Counter[str]:
        lines = (self.orders / points.TRACE).read_text().splitlines()
        return Counter(json.loads(line)["site"] for line in lines)

    def deaths(self) -> list[str]:
        path = self.orders / points.DEATHS
        return [json.loads(line)["site"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


def test_every_durable_call_is_seen_before_and_after(victim: Victim) -> None:
    assert victim.run(record=True) == 0
    sites = victim.sites()
    calls = ("open", "write", "fsync", "replace", "unlink", "flock", "link")
    for phase in ("before", "after"):
        assert {site.split()[1] for site in sites if site.split()[2] == phase} >= set(calls)
    assert sites["python write torn TMP"] == 2, "of the file and of the new log"
    assert sites["python open before plain"] == 1, "open() goes past the functions of os"
    assert sites["python exit after ."] == 1


@pytest.mark.slow
def test_killed_at_each_step_in_turn_it_dies_there(victim: Victim) -> None:
    victim.run(record=True)
    steps = [site for site in victim.sites() if site.split()[1] not in ("exit", "tell")]
    assert len(steps) > 30
    for site in steps:
        assert victim.run(site) == -signal.SIGKILL, site
        assert victim.deaths() == [site]


def test_a_torn_write_leaves_half(victim: Victim) -> None:
    victim.run("python write torn log.jsonl")
    torn = (victim.root / "log.jsonl").read_bytes()
    assert torn and not torn.endswith(b"\n")


def test_before_a_rename_there_is_nothing_and_after_it_there_is_all(victim: Victim) -> None:
    victim.run("python replace before file")
    assert not (victim.root / "file").exists()
    victim.run("python replace after file")
    assert (victim.root / "file").read_bytes() == b"content"


def test_an_occurrence_that_is_never_come_to_kills_nobody(victim: Victim) -> None:
    assert victim.run("python replace after file", occurrence=2) == 0
    assert victim.deaths() == []


def test_without_orders_nothing_is_replaced() -> None:
    environment = {key: value for key, value in hooked(HOOK).items() if key != points.VARIABLE}
    code = "import os; print(type(os.fsync).__name__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "builtin_function_or_method\n", done.stderr


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/w/jobs/0007-resnet18/stages/t003-r0002.json", "jobs/JOB/stages/ROUND.json"),
        ("/w/jobs/.incoming-12-ab/spec.json", "jobs/INCOMING/spec.json"),
        ("/w/logs/tuning/llvm-x/0123abcd.jsonl", "logs/tuning/TARGET/HASH.jsonl"),
        ("/w/logs/tuning/llvm-x/.tmp-1-ab", "logs/tuning/TARGET/TMP"),
        ("/w/jobs/0007-net/artifacts/t003-r0002/ab.so", "jobs/JOB/artifacts/ROUND/LIBRARY.so"),
        ("/elsewhere/jobs", ""),
        ("/workspace2/jobs", ""),
    ],
)
def test_files_of_a_kind_have_one_name(path: str, kind: str) -> None:
    assert points.kind_of(path, ["/w", "/workspace"]) == kind


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["python", "-m", "autotune.workers.worker", "--workspace", "submit"], "worker"),
        (["python", "-m", "autotune.workers.oneshot", "import", "7"], "importer"),
        (["python", "-m", "autotune", "--workspace", "x", "daemon", "run"], "daemon"),
        (["python", "-m", "autotune", "submit", "net.onnx"], "submit"),
        (["python", "-m", "kills.enqueue", "net"], "submit"),
        (["python", "-c", "pass"], "python"),
    ],
)
def test_the_command_line_says_what_a_process_is_for(words: list[str], role: str) -> None:
    assert points.role_of(words) == role
