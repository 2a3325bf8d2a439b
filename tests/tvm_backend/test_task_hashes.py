"""The programs of tasks, schedules that were logged and plans that were written stay what they were.

A trial is kept for the hash of a task, and its trace names blocks and intrinsics. So whatever changes the program of a
task makes the trials of users void.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.network_plan import plan
from autotune.storage.formats import Candidate

from . import hashed_models
from .hashed_models import Case

DATA = Path(__file__).parents[1] / "data" / "hashes"
TASKS = json.loads((DATA / "task-hashes.json").read_text())["tasks"]
SCHEDULES = json.loads((DATA / "schedules.json").read_text())["schedules"]
PLANNED = json.loads((DATA / "planned-hashes.json").read_text())["plans"]
CASES = list(hashed_models.cases())
# One network for each kind of operator, each in another precision and for another CPU.
QUICK = {
    "resnet fp32 x86-64-v4 winograd",
    "mobilenet fp32 x86-64-v3",
    "resnet int8 cascadelake",
    "detector int8 sapphirerapids",
    "lstm int8 x86-64-v3",
    "convnext bf16 cooperlake",
    "encoder bf16 sapphirerapids",
}
QUICK_SCHEDULES = {"resnet fp32 x86-64-v4 winograd", "resnet int8 sapphirerapids", "resnet bf16 cooperlake"}


def items(cases: list[Case], quick: set[str]) -> list[object]:
    """Cases as parameters; those that are not quick are slow tests."""
    return [pytest.param(item, id=item.name, marks=() if item.name in quick else pytest.mark.slow) for item in cases]


def test_the_lists_have_all_networks() -> None:
    assert len(hashed_models.NETWORKS) == 14
    assert set(TASKS) == {case.name for case in CASES} >= QUICK
    assert set(SCHEDULES) == {case.name for case in hashed_models.SCHEDULED} >= QUICK_SCHEDULES
    assert all(TASKS.values())


@pytest.mark.parametrize("case", items(CASES, QUICK))
def test_tasks_keep_their_hashes(case: Case) -> None:
    assert hashed_models.hashes(case) == TASKS[case.name]


@pytest.mark.parametrize("case", items(list(hashed_models.SCHEDULED), QUICK_SCHEDULES))
def test_a_logged_schedule_gives_the_program_that_it_gave(case: Case) -> None:
    from autotune.tvm_backend.search.design_space import replay
    from autotune.tvm_backend.search.tasks import extract_programs, program_hash

    kept = SCHEDULES[case.name]
    module, target = hashed_models.prepared(case)
    program = extract_programs(module, target)[kept["task"]]
    (replayed,) = replay([Candidate(kept["hash"], kept["trace"], kept["args"])], program, target)
    assert program_hash(replayed.sch.mod) == kept["hash"]


@pytest.mark.parametrize(("path", "case"), list(hashed_models.plans(DATA)), ids=lambda item: getattr(item, "stem", ""))
def test_a_plan_gives_the_tasks_that_it_gave(path: Path, case: Case) -> None:
    planned = hashed_models.hashes(case, plan.read(path))
    assert planned == PLANNED[path.name]
    assert planned != hashed_models.hashes(case)
