"""A lock file is for one model with one set of tasks: a job that differs from it is told in what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import BadInput, BadState, DamagedFile
from autotune.network_plan.plan import NOTHING, Block, Plan
from autotune.storage import export_lock, formats
from autotune.storage.export_lock import LOCK, ExportLock, LockedTask
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths


@pytest.fixture
def spec(make_job: Callable[..., JobPaths]) -> JobSpec:
    return formats.read(JobSpec, make_job().spec)


def trial(hash: str) -> Trial:
    return Trial(hash, [[], []], [], (1.0,), None, "job", 0, 0.0)


def lock_of(spec: JobSpec, **others: object) -> ExportLock:
    tasks = tuple(LockedTask(task.name, task.hash, task.weight) for task in spec.tasks)
    made = ExportLock("digest", spec.model_size, spec.model_crc32, spec.target, spec.precision, 2, True, tasks)
    return replace(made, **others)


def refuse(trace: object) -> None:
    raise ValueError("no schedule")


def test_the_job_that_it_was_written_for_fits(spec):
    export_lock.check(lock_of(spec), spec, NOTHING, Path(LOCK))


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"model_crc32": 1}, "model"),
        ({"target": {"kind": "cuda"}}, "target"),
        ({"precision": "bf16"}, "precision"),
        ({"plan": Plan(blocks=(Block(operators=("conv",)),))}, "plan"),
        ({"tasks": ()}, "tasks"),
    ],
)
def test_the_first_difference_is_named(spec, others, what):
    with pytest.raises(BadState, match=f"{LOCK} is for another {what} than job 1 "):
        export_lock.check(lock_of(spec, **others), spec, NOTHING, Path(LOCK))


def test_what_is_read_is_what_was_written(spec, tmp_path):
    tasks = (LockedTask("a", "0" * 16, 2, trial("1" * 16)), LockedTask("b", "2" * 16, 1))
    formats.write(tmp_path / LOCK, lock_of(spec, tasks=tasks))
    lock = export_lock.read(tmp_path, lambda trace: None)
    assert lock == lock_of(spec, tasks=tasks)
    assert lock.trials == {"0" * 16: trial("1" * 16)}


def test_a_schedule_that_is_refused_damages_the_file(spec, tmp_path):
    formats.write(tmp_path / LOCK, lock_of(spec, tasks=(LockedTask("a", "0" * 16, 1, trial("1" * 16)),)))
    with pytest.raises(DamagedFile, match="schedule of candidate 1111111111111111 is refused: no schedule"):
        export_lock.read(tmp_path, refuse)


def test_a_folder_without_a_lock_file_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="--frozen takes all choices from .*autotune.lock, which is missing"):
        export_lock.read(tmp_path, lambda trace: None)
