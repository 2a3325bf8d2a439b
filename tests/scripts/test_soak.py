"""scripts/chaos/soak.py: what it takes for flat, and what for growth."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import soak_losses

from autotune.reasons import Reason
from autotune.storage import formats, journal
from autotune.storage.formats import JobSpec, JobState
from autotune.storage.journal import StageFailed, TaskSetAside


@pytest.fixture(scope="module")
def soak(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("soak")


def samples(soak: ModuleType, **change: Any) -> list[Any]:
    """Half an hour of a daemon and of workers that are replaced every five minutes; `change` is of the daemon."""
    noise = random.Random(0)
    taken = []
    for at in range(0, 1800, 5):
        daemon = {"memory_mb": 40 + noise.random(), "files": 10, "threads": 1, "children": 2}
        daemon |= {name: value(at) for name, value in change.items()}
        taken.append(soak.Sample(at, soak.DAEMON, 1, **daemon))
        taken.append(soak.Sample(at, "llvm worker", 2 + at // 300, 230 + (at % 300) / 100, 5, 1, at // 5 % 3))
    return taken


def test_noise_and_workers_that_grow_until_they_are_replaced_are_flat(soak, capsys):
    assert soak.judge(samples(soak))
    out = capsys.readouterr().out
    assert "GROWS" not in out
    assert "llvm workers: 6, one after the other; the longest was there for 295 s" in out
    assert out.endswith("verdict: flat, and workers are replaced\n")


def test_what_grows_only_while_it_warms_up_is_flat(soak):
    assert soak.judge(samples(soak, memory_mb=lambda at: min(40, 10 + at / 10)))


def test_a_few_samples_far_off_are_flat(soak):
    assert soak.judge(samples(soak, files=lambda at: 500 if at in (1700, 1750, 1795) else 10))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", lambda at: 40 + 24 * at / 3600),  # the 1.2 MB in 3 minutes that were found
        ("files", lambda at: 10 + at // 400),
        ("threads", lambda at: 1 + at // 400),
        ("children", lambda at: 2 + at // 400),
    ],
)
def test_steady_growth_is_found(soak, capsys, name, value):
    assert not soak.judge(samples(soak, **{name: value}))
    assert capsys.readouterr().out.endswith(f"verdict: {name} of daemon grows\n")


def test_a_worker_that_is_never_replaced_is_found(soak, capsys):
    assert not soak.judge([sample for sample in samples(soak) if sample.pid < 3])
    assert "no llvm worker was replaced" in capsys.readouterr().out


def test_a_look_sees_this_process(soak):
    (sample,) = soak.look(os.getpid(), 1.0)
    assert (sample.role, sample.pid) == (soak.DAEMON, os.getpid())
    assert sample.memory_mb > 5
    assert sample.files >= 3
    assert sample.threads >= 1


DONE = JobState("done", Reason("budget-used"), trials_done=24)


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        (DONE, False),
        (replace(DONE, reason=Reason("no-improvement"), trials_done=20), False),
        (JobState("cancelled", Reason("cancelled"), trials_done=3), False),
        (replace(DONE, trials_done=20), True),
        (replace(DONE, trials_done=25), True),
        (JobState("cancelled", Reason("cancelled"), trials_done=25), True),
        (JobState("failed", Reason("all-set-aside")), True),
    ],
)
def test_a_job_must_have_its_budget_and_no_more(state, lost):
    assert bool(soak_losses.shortfall(7, 24, state, [])) == lost


def test_a_job_is_cancelled_when_status_says_so(workspace, make_job):
    make_job(7, state=JobState("running", trials_done=3))
    losses = soak_losses.Losses(workspace.root)
    losses.look({7: {"state": "cancelled"}})
    assert losses.judged == {7} and not losses.problems


def test_a_task_that_was_set_aside_is_a_loss():
    assert soak_losses.shortfall(7, 24, DONE, [TaskSetAside(task=0, detail="build: crashed")])


@pytest.mark.parametrize(
    ("outcome", "kills", "lost"),
    [
        ("crashed", [1001.0], False),
        ("crashed", [999.5], False),  # the stage was given to a worker that had just been killed
        ("crashed", [], True),
        ("crashed", [998.5], True),
        ("failed", [1001.0], True),
    ],
)
def test_a_stage_may_fail_for_a_killed_worker_alone(workspace, make_job, outcome, kills, lost):
    job = make_job(7)
    formats.write(job.state, replace(DONE, trials_done=formats.read(JobSpec, job.spec).trials))
    event = StageFailed(kind="build", began=1000.0, at=1002.0, seconds=2.0, outcome=outcome, detail="no kernel")
    journal.append(job.journal, event)
    losses = soak_losses.Losses(workspace.root, kills)
    for _ in range(2):
        losses.look({7: {"state": "done"}})
    assert losses.problems == ([f"job 7: build: {outcome}: no kernel"] if lost else [])


def test_every_kind_of_fault_comes_once_before_any_comes_again(load_script, tmp_path):
    (tmp_path / "autotune.toml").write_text("")
    (tmp_path / "locks").mkdir()
    faults = load_script("soak_faults").Faults(tmp_path, random.Random(1))
    kinds = len(faults._kinds())
    while faults.done.total() < 2 * kinds:
        faults.turn(os.getpid())
        assert max(faults.done.values(), default=0) <= 1 + faults.done.total() // (kinds + 1)
    assert set(faults.done.values()) == {2}
