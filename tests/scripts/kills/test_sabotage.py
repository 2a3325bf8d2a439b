"""The harness can fail: each guarantee is broken on purpose, in the processes it watches, and it says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from kills import power
from kills.plan import Kill
from kills.run import HOOK, Round, RoundResult, differences, read_trace
from kills.subject import Subject, simulated

TORN_APPEND = Kill("stage write torn logs/tuning/TARGET/HASH.jsonl", 2, "one")

IN_PLACE = """
import os
from autotune.storage import atomic
def publish_bytes(path, data):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    atomic.write_all(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    atomic.sync_folder(path.parent)
atomic.publish_bytes = publish_bytes
"""
NO_TRUNCATION = """
from autotune.storage.record_log import RecordLog
RecordLog._truncate = lambda self, length: None
"""
PUBLISH_FIRST = """
from autotune.stages import measure
log = measure._measure
def published_first(stage, *rest):
    stage.advance("train")
    return log(stage, *rest)
measure._measure = published_first
"""
MEASURE_TWICE = """
from autotune.stages import measure
from autotune.storage.formats import to_json
from autotune.storage.tuning_log import TuningLog
def add(self, trials):
    new = list(trials)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._log.append([to_json(trial) for trial in new])
    return new
TuningLog.add = add
run = measure.run
def forgetful(stage):
    TuningLog.entries = lambda self: []
    return run(stage)
measure.run = forgetful
"""
LIBRARIES_STAY = """
from autotune.stages import context, measure
measure.discard_tree = context.discard_tree = lambda folder: True
"""
ACKNOWLEDGE_FIRST = """
import os, sys
from autotune.storage import atomic
if "kills.enqueue" in sys.orig_argv:
    publish_folder = atomic.publish_folder
    def told_first(temporary, final):
        sys.stdout.write("1\\n")
        sys.stdout.flush()
        os._exit(0)
    atomic.publish_folder = told_first
"""
NO_SYNC = """
from autotune.storage import atomic
def no_sync(path, data):
    path.write_bytes(data)
atomic.write_new = no_sync
"""


@pytest.fixture
def subject() -> Subject:
    """A job of two tasks."""
    whole = simulated(seed=1, policy="sequential", second=0.002)
    return replace(whole, submissions=lambda root: whole.submissions(root)[:1], limit_s=60.0)


def play(
    folder: Path, subject: Subject, sabotage: str = "", kills: tuple[Kill, ...] = (), record: bool = False
) -> Round:
    """A round whose processes run this code at their start, after what arms them."""
    hook = folder / "hook"
    hook.mkdir(parents=True)
    (hook / "sitecustomize.py").write_text((HOOK / "sitecustomize.py").read_text() + sabotage)
    return Round(folder / "round", subject, kills, record=record, hook=hook)


def problems(folder: Path, subject: Subject, sabotage: str, *kills: Kill) -> str:
    outcome = play(folder, subject, sabotage, kills).run()
    assert len(outcome.deaths) >= len(kills), "they died where they should"
    return "\n".join(outcome.problems)


def faults(folder: Path, subject: Subject, sabotage: str = "") -> str:
    """What is wrong with the order of the durable calls."""
    recorded = play(folder, subject, sabotage, record=True)
    recorded.run()
    return "\n".join(power.violations(read_trace(recorded)))


def test_without_sabotage_there_is_nothing_to_say(tmp_path: Path, subject: Subject) -> None:
    """Nor in a round with kills: `test_run.py` plays one."""
    assert faults(tmp_path / "recorded", subject) == ""


@pytest.mark.slow
def test_files_written_in_place(tmp_path: Path, subject: Subject) -> None:
    torn = Kill("stage write torn jobs/JOB/stages/ROUND.json", 3, "all")
    assert "is damaged" in problems(tmp_path / "killed", subject, IN_PLACE, torn)
    assert "in place" in faults(tmp_path / "recorded", subject, IN_PLACE)


def test_appending_to_a_torn_tail(tmp_path: Path, subject: Subject) -> None:
    assert "are damaged" in problems(tmp_path, subject, NO_TRUNCATION, TORN_APPEND)


@pytest.mark.slow
def test_the_next_stage_published_before_the_trials_are_logged(tmp_path: Path, subject: Subject) -> None:
    assert "logged a trial after it had published what follows" in faults(tmp_path, subject, PUBLISH_FIRST)


@pytest.mark.slow
def test_measuring_what_was_measured(tmp_path: Path, subject: Subject) -> None:
    killed = Kill("stage fsync after logs/tuning/TARGET/HASH.jsonl", 2, "one")
    assert "is there 2 times" in problems(tmp_path, subject, MEASURE_TWICE, killed)


@pytest.mark.slow
def test_libraries_that_nobody_removes(tmp_path: Path, subject: Subject) -> None:
    assert "belongs to no stage" in problems(tmp_path, subject, LIBRARIES_STAY)


@pytest.mark.slow
def test_a_submit_acknowledged_before_it_is_there(tmp_path: Path, subject: Subject) -> None:
    assert "was acknowledged as 1 and is not there" in problems(tmp_path, subject, ACKNOWLEDGE_FIRST)


@pytest.mark.slow
def test_a_file_renamed_before_it_was_synced(tmp_path: Path, subject: Subject) -> None:
    assert "before its content was durable" in faults(tmp_path, subject, NO_SYNC)


def test_an_outcome_that_is_another_one() -> None:
    undisturbed = RoundResult([], [], {"one": "done"}, Counter([("conv", "a"), ("conv", "b")]))
    other = RoundResult([], [], {"one": "done"}, Counter([("conv", "b"), ("conv", "b")]))
    assert differences(undisturbed, undisturbed) == []
    assert differences(undisturbed, other) == ["trial a of conv is missing", "trial b of conv is one too many"]
    assert len(differences(undisturbed, replace(undisturbed, jobs={"one": "failed"}))) == 1
