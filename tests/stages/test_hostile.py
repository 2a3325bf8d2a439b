"""Whatever a candidate does when it is built or run, it is that candidate's failure, and the others are measured."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.isolate import die_with_parent
from autotune.limits import limit_memory
from autotune.stages import measure
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, InProgress, JobSpec, StageFile
from autotune.storage.paths import JobPaths, Workspace

_spec = importlib.util.spec_from_file_location("hostile", Path(__file__).parents[1] / "hostile.py")
assert _spec is not None and _spec.loader is not None
hostile = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hostile)

SETTINGS = """
[measure]
timeout_s = 1.5
repeats = 2
min_repeat_ms = 1
threads = 1
[build]
timeout_s = 1.0
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Candidate]]]:
    """Builds kernels, each once, in a process of their own: this one must stay fit to fork."""
    folder = tmp_path_factory.mktemp("libraries")
    in_a_child(lambda: [formats.write(folder / f"{name}.json", _stage(name, folder)) for name in hostile.BODIES])

    def get(*names: str, into: Path) -> list[Candidate]:
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(folder / f"{name}.so", into / f"{name}.so")
        return [formats.read(StageFile, folder / f"{name}.json").candidates[0] for name in names]

    yield get


def _stage(name: str, folder: Path) -> StageFile:
    return StageFile(0, 0, "measure", (hostile.library(name, folder),))


def in_a_child(work: Callable[[], Any]) -> int:
    """Do what a worker does: load TVM, and work in a forked child. Returns its status."""
    from autotune.tvm_backend.load import load_for_tuning

    load_for_tuning("llvm")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.setpgid(0, 0)
            die_with_parent()
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


class Job:
    """A job with one task, which doubles sixteen numbers, and whose round 0 is to be measured."""

    def __init__(self, workspace: Workspace, paths: JobPaths, libraries: Callable[..., list[Candidate]]) -> None:
        self.workspace, self.paths, self.libraries = workspace, paths, libraries
        if SETTINGS not in workspace.config.read_text():
            workspace.config.write_text(workspace.config.read_text() + SETTINGS)
        in_a_child(self._write_task)

    def _write_task(self) -> None:
        from autotune.tvm_backend.tasks import program_hash, write_program

        self.paths.tasks.mkdir()
        program, spec = hostile.program("good"), formats.read(JobSpec, self.paths.spec)
        write_program(self.paths.task(0), program)
        formats.write(self.paths.spec, replace(spec, tasks=(replace(spec.tasks[0], hash=program_hash(program)),)))

    def put(self, *names: str) -> None:
        candidates = self.libraries(*names, into=self.paths.artifacts_of(0, 0))
        formats.write(self.paths.stage(0, 0), StageFile(0, 0, "measure", tuple(candidates)))

    def stage(self, attempt: int = 0) -> Stage:
        from autotune import config

        return Stage.load(self.workspace, self.paths, config.load(self.workspace.config), 0, 0, (0,), 0, "cpu", attempt)

    def run(self, attempt: int = 0) -> int:
        """Measure in a child with 128 MiB, as a worker does; returns how that ended."""

        def work() -> None:
            limit_memory(128)
            measure.run(self.stage(attempt))

        return in_a_child(work)

    def found(self) -> dict[str, str]:
        """`ok`, or the stage and kind of the failure, by candidate."""
        return {trial.hash: _ending(trial.failure) for trial in self.stage().log().trials()}

    def reason(self, name: str) -> str:
        (failure,) = [trial.failure for trial in self.stage().log().trials() if trial.hash == name]
        assert failure is not None
        return failure.reason

    def quarantined(self) -> set[str]:
        return set(self.stage().quarantine().failures("llvm"))


def _ending(failure: Failure | None) -> str:
    return "ok" if failure is None else f"{failure.stage} {failure.kind}"


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths], libraries: Callable[..., list[Candidate]]) -> Job:
    return Job(workspace, make_job(tasks=1), libraries)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("hang", "timeout", "killed after 1.5 s"),
        ("segfault", "crash", "killed by SIGSEGV"),
        ("abort", "crash", "killed by SIGABRT"),
        ("eater", "memory", "MiB of memory; killed"),
        ("glutton", "memory", "MiB of memory; killed"),
        ("wrong", "wrong", "output 1 is wrong: relative error 0.005"),
        ("unfinished", "wrong", "output 1 is wrong"),
        ("beyond", "wrong", "wrote beyond the bounds of argument 1"),
        ("input", "wrong", "changed argument 0, which is an input"),
    ],
)
def test_a_bad_kernel_is_a_failed_trial_in_quarantine_and_the_others_are_measured(
    job: Job, name: str, kind: str, reason: str
) -> None:
    job.put(name, "good", "also_good")
    assert job.run() == 0
    assert job.found() == {name: f"measure {kind}", "good": "ok", "also_good": "ok"}
    assert reason in job.reason(name)
    assert job.quarantined() == {name}


def test_one_that_dies_of_what_another_left_behind_is_not_blamed(job: Job) -> None:
    job.put("saboteur", "slow", "good")
    assert job.run() == 0
    assert job.found() == {"saboteur": "ok", "slow": "ok", "good": "ok"}
    assert job.quarantined() == set()


def test_a_wrong_kernel_is_let_through_where_checks_are_off(job: Job) -> None:
    job.workspace.config.write_text(job.workspace.config.read_text().replace("[measure]", "[measure]\nverify = false"))
    job.put("wrong", "good")
    assert job.run() == 0
    assert job.found() == {"wrong": "ok", "good": "ok"}


def test_a_wrong_kernel_never_becomes_the_best(job: Job) -> None:
    job.put("good", "wrong")
    assert job.run() == 0
    found = {trial.hash: trial for trial in job.stage().log().trials()}
    wrong = found["wrong"]
    assert wrong.failure is not None or (wrong.best_us or 0) >= (found["good"].best_us or 0)


def test_a_damaged_reference_is_made_again(job: Job) -> None:
    path = job.workspace.tuning_log(job.stage().spec.target_key, job.stage().task.hash).reference
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK\x03\x04 torn")
    job.put("wrong")
    assert job.run() == 0
    assert job.found() == {"wrong": "measure wrong"}


class TestPoison:
    def test_one_that_kills_its_stage_twice_is_found_out_and_the_others_are_measured(self, job: Job) -> None:
        job.put("good", "assassin", "also_good")
        assert os.WTERMSIG(job.run(attempt=0)) == signal.SIGKILL
        assert os.WTERMSIG(job.run(attempt=1)) == signal.SIGKILL
        assert job.run(attempt=2) == 0
        assert job.found() == {"good": "ok", "assassin": "measure crash", "also_good": "ok"}
        assert job.reason("assassin") == "its stage died at it 2 times in a row"
        assert job.quarantined() == {"assassin"}

    def test_a_stage_that_was_killed_with_its_daemon_blames_nobody(self, job: Job) -> None:
        job.put("good")
        for _ in range(3):
            formats.write(job.paths.in_progress(0, 0), InProgress("good", 0, 5))
        assert job.run(attempt=0) == 0
        assert job.found() == {"good": "ok"}

    def test_a_stage_that_ends_leaves_no_note(self, job: Job) -> None:
        job.put("good")
        assert job.run() == 0
        assert not job.paths.in_progress(0, 0).exists()


class TestQuarantine:
    def test_another_job_does_not_run_what_it_proposed_before(
        self, job: Job, make_job: Callable[..., JobPaths], libraries: Callable[..., list[Candidate]]
    ) -> None:
        """The other one has a log of its own: another number of threads, or a log that was lost."""
        job.put("hang", "good")
        job.run()
        second = Job(job.workspace, make_job(id=2, name="other", tasks=1, target_key="llvm-other"), libraries)
        second.put("hang", "good")
        assert second.run() == 0
        assert second.found() == {"hang": "measure timeout", "good": "ok"}
        assert second.reason("hang") == "in quarantine: killed after 1.5 s"

    def test_a_plain_error_is_not_shut_out(self, job: Job) -> None:
        job.put("good")
        broken = Candidate("broken", [], [], failure=Failure("build", "error", "no such thing"))
        formats.write(job.paths.stage(0, 0), StageFile(0, 0, "measure", (broken,)))
        assert job.run() == 0
        assert job.found() == {"broken": "build error"}
        assert job.quarantined() == set()

    def test_a_damaged_line_shuts_out_nobody_and_the_others_stay(self, job: Job) -> None:
        job.put("segfault")
        job.run()
        with job.workspace.quarantine.open("a") as file:
            file.write("00000000 " + json.dumps({"hash": "good"}) + "\n")
        assert job.quarantined() == {"segfault"}
