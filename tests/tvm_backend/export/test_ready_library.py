"""An export takes the library that the queue has compiled as it was, of what is still the best, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export import ready_library
from autotune.tvm_backend.export.ready_library import KernelWork, ModelFacts, ReadyLibrary

FACTS = ModelFacts(4096, {"two": (KernelWork("b", 0.5, 10, 2.0, 4), KernelWork(None, 0.0, 7)), "one": ()}, {"arena": 9})
CONTENT = b"\x7fELF\n" + bytes(1000)


def trial(hash: str, time_us: float) -> Trial:
    return Trial(hash, [[], []], [], (time_us,), None, "j", 0, 0.0)


class Job:
    """A job with a trial of its first task, and a library of it."""

    def __init__(self, workspace: Workspace, paths: JobPaths) -> None:
        self.workspace = workspace
        self.paths = paths
        self.log("aa", 9.0)
        library = paths.artifacts / "model.so"
        paths.artifacts.mkdir(exist_ok=True)
        library.write_bytes(CONTENT)
        ready_library.note(library, self.made_from, FACTS)
        ready_library.keep(paths, library)

    @property
    def spec(self) -> JobSpec:
        return read_spec(self.paths)

    @property
    def made_from(self) -> str:
        return ready_library.made_from(self.workspace, self.paths, self.spec)

    @property
    def ready(self) -> ReadyLibrary | None:
        return ready_library.find(self.workspace, self.paths, self.spec)

    def log(self, hash: str, time_us: float) -> None:
        records = self.workspace.tuning_log(self.spec.target_key, self.spec.tasks[0].hash).records
        TuningLog(records).add([trial(hash, time_us)])


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths], monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("XDG_STATE_HOME", str(workspace.root / "state"))
    return Job(workspace, make_job())


def test_it_is_taken_with_what_a_report_says_of_it(job: Job, tmp_path: Path) -> None:
    assert job.ready is not None and job.ready.facts == FACTS
    assert ready_library.copy(job.paths, job.ready, tmp_path / "model.so")
    assert (tmp_path / "model.so").read_bytes() == CONTENT
    assert not list(job.paths.artifacts.iterdir()), "it was moved"


def test_a_slower_trial_does_not_matter_and_a_faster_one_does(job: Job) -> None:
    job.log("bb", 10.0)
    assert job.ready is not None
    job.log("cc", 8.0)
    assert job.ready is None


def test_it_is_not_taken_of_another_plan_or_job(job: Job) -> None:
    job.paths.plan.write_text("")
    assert job.ready is None
    job.paths.plan.unlink()
    assert job.ready is not None
    formats.write(job.paths.spec, replace(job.spec, winograd=not job.spec.winograd))
    assert job.ready is None


def test_a_library_that_was_changed_is_not_taken(job: Job, tmp_path: Path) -> None:
    ready = job.ready
    assert ready is not None
    job.paths.ready_library.write_bytes(CONTENT[:-1])
    assert not ready_library.copy(job.paths, ready, tmp_path / "model.so")
    job.paths.ready_library.write_bytes(CONTENT)
    assert ready_library.copy(job.paths, ready, tmp_path / "model.so")


@pytest.mark.parametrize("change", [{"facts": replace(FACTS, constant_bytes=0)}, {"library": "00"}])
def test_a_note_that_was_changed_is_not_taken(job: Job, change: dict[str, Any]) -> None:
    assert job.ready is not None
    formats.write(job.paths.ready_note, replace(job.ready, **change))
    assert job.ready is None


def test_a_note_of_another_user_is_not_taken(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert job.ready is None


def test_a_torn_note_or_a_lost_library_is_no_error(job: Job, tmp_path: Path) -> None:
    ready = job.ready
    assert ready is not None
    job.paths.ready_library.unlink()
    assert job.ready is None and not ready_library.copy(job.paths, ready, tmp_path / "model.so")
    job.paths.ready_library.write_bytes(CONTENT)
    job.paths.ready_note.write_bytes(job.paths.ready_note.read_bytes()[:20])
    assert job.ready is None


def test_what_is_removed_is_counted(job: Job) -> None:
    assert ready_library.remove(job.paths) == len(CONTENT)
    assert job.ready is None and ready_library.remove(job.paths) == 0


def test_trials_are_the_best_only_if_none_was_set_aside(job: Job) -> None:
    first = job.spec.tasks[0].hash
    assert ready_library.has_best(job.workspace, job.spec, {first: trial("aa", 9.0)})
    assert not ready_library.has_best(job.workspace, job.spec, {})
    assert not ready_library.has_best(job.workspace, job.spec, {first: trial("bb", 9.0)})
