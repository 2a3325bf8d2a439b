"""Whatever a candidate does when it is built or run, it is that candidate's failure, and the others are measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.processes.memory import limit_memory
from autotune.processes.messages import RunStage
from autotune.stages import build, measure, search, trial_features
from autotune.stages.blame import InProgress, explained_attempts
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, StageFile, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.quarantine import Quarantined
from autotune.workers.worker_pool import WorkerPool

from .. import hostile
from ..hostile import in_a_child
from .hostile_job import HostileJob, build_libraries

SETTINGS = """
[measure]
timeout_s = 3.0
repeats = 2
min_repeat_ms = 1
threads = 1
[build]
timeout_s = 2.0
[search]
population = 32
generations = 1
init_unmeasured = 8
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_libraries(tmp_path_factory.mktemp("libraries"), *hostile.BODIES)


class Job(HostileJob):
    """It is measured on this machine."""

    def __init__(self, workspace: Workspace, paths: JobPaths, libraries: Path) -> None:
        if SETTINGS not in workspace.config.read_text():
            workspace.config.write_text(workspace.config.read_text() + SETTINGS)
        super().__init__(workspace, paths, libraries)

    def run(self, attempt: int = 0) -> int:
        """Measure in a child with 128 MiB, as a worker does; returns how that ended."""

        def work() -> None:
            limit_memory(128)
            measure.run(self.stage(attempt))

        return in_a_child(work)

    def found(self) -> dict[str, str]:
        """`ok`, or the stage and kind of the failure, by candidate."""
        return {name: _ending(trial.failure) for name, trial in self.trials().items()}

    def reason(self, name: str) -> str:
        failure = self.trials()[name].failure
        assert failure is not None
        return failure.reason

    def quarantined(self) -> set[str]:
        return set(self.stage().quarantine().failures("llvm"))


def _ending(failure: Failure | None) -> str:
    return "ok" if failure is None else f"{failure.stage} {failure.kind}"


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths], libraries: Path) -> Job:
    return Job(workspace, make_job(tasks=1), libraries)


# What a kernel does, and the kind and the reason of its failure.
BAD = {
    "hang": ("timeout", "killed after 3 s"),
    "segfault": ("crash", "killed by SIGSEGV"),
    "abort": ("crash", "killed by SIGABRT"),
    "eater": ("memory", "MiB of memory; killed"),
    "glutton": ("memory", "MiB of memory; killed"),
    "wrong": ("wrong", "output 1 is wrong: relative error 0.005"),
    "unfinished": ("wrong", "output 1 is wrong"),
    "beyond": ("wrong", "wrote beyond the bounds of argument 1"),
    "input": ("wrong", "changed argument 0, which is an input"),
}


def test_bad_kernels_are_failed_trials_in_quarantine_and_the_others_are_measured(job: Job) -> None:
    job.put(*BAD, "good", "also_good")  # what is slower than the best one need not be right, and is not checked
    assert job.run() == 0
    failures = {name: f"measure {kind}" for name, (kind, _) in BAD.items()}
    assert job.found() == {**failures, "good": "ok", "also_good": "ok"}
    assert all(reason in job.reason(name) for name, (_, reason) in BAD.items())
    assert job.quarantined() == set(BAD)


def test_a_library_that_somebody_else_has_built_is_built_again_and_never_loaded(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put("good")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert job.run() == 0
    assert job.stage().file.kind == "build"
    assert job.found() == {}


def test_a_candidate_that_dies_of_what_another_left_behind_is_not_blamed(job: Job) -> None:
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
    good, wrong = (job.trials()[name] for name in ("good", "wrong"))
    assert wrong.failure is not None or (wrong.median_us or 0) >= (good.median_us or 0)


def test_a_damaged_reference_is_made_again(job: Job) -> None:
    path = job.workspace.tuning_log(job.stage().spec.target_key, job.stage().task.hash).reference
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK\x03\x04 torn")
    job.put("wrong")
    assert job.run() == 0
    assert job.found() == {"wrong": "measure wrong"}


class TestMatmul:
    """A task with a design space."""

    @pytest.fixture
    def matmul(self, job: Job) -> Job:
        in_a_child(lambda: job.write_task(hostile.matmul()))
        return job

    def write(self, job: Job, **changes: Callable[[Any, list[Any]], Any]) -> None:
        """Put scheduled candidates before the build."""

        def work() -> None:
            candidates = tuple(hostile.scheduled(name, change) for name, change in changes.items())
            formats.write(job.paths.stage(0, 0), StageFile(0, 0, "build", candidates))

        assert in_a_child(work) == 0

    def test_a_build_that_takes_too_long_is_ended_and_the_others_are_built(self, matmul: Job) -> None:
        """262,144 statements in a row: LLVM was at them for longer than eight minutes."""
        self.write(matmul, good=_parallel, huge=_unrolled, also_good=_plain)
        assert in_a_child(lambda: build.run(matmul.stage())) == 0
        stage_file = matmul.stage().file
        assert stage_file.kind == "measure"
        assert [_ending(item.failure) for item in stage_file.candidates] == ["ok", "build timeout", "ok"]
        assert [item.failure.reason for item in stage_file.candidates if item.failure] == ["killed after 2 s"]
        assert [bool(item.library) for item in stage_file.candidates] == [True, False, True]

    def proposals(self, job: Job) -> list[str]:
        formats.write(job.paths.stage(0, 0), StageFile(0, 0, "search"))
        assert in_a_child(lambda: search.run(replace(job.stage(), count=4))) == 0
        return [item.hash for item in job.stage().file.candidates]

    def test_no_search_proposes_what_is_in_quarantine(self, matmul: Job) -> None:
        first = self.proposals(matmul)
        assert len(first) == 4
        assert self.proposals(matmul) == first, "the same search proposes the same"
        failure = Failure("measure", "crash", "killed by SIGSEGV")
        target = {"kind": "llvm", "num-cores": 64}
        matmul.stage().quarantine().add(
            [Quarantined(name, target, "other", failure, "0009-old", 0.0) for name in first]
        )
        second = self.proposals(matmul)
        assert len(second) == 4
        assert not set(first) & set(second)

    def test_a_schedule_that_cannot_be_rebuilt_has_no_features_and_harms_nobody(self, matmul: Job) -> None:
        self.write(matmul, good=_parallel, deep=_deep)
        good, deep = matmul.stage().file.candidates
        crash = Failure("build", "crash", "killed by SIGSEGV")
        trials = [_failed(good, None), _failed(good, crash, "came_through"), _failed(deep, crash)]
        path = matmul.workspace.tuning_log(matmul.stage().spec.target_key, matmul.stage().task.hash).features
        path.parent.mkdir(parents=True)
        assert in_a_child(lambda: trial_features.of_task(matmul.stage(), 0, trials)) == 0
        rows = trial_features.read(path).by_hash()
        assert len(rows["good"]) > 0
        np.testing.assert_array_equal(rows["came_through"], rows["good"])
        assert "deep" not in rows


def _plain(schedule: Any, loops: list[Any]) -> None:
    pass


def _parallel(schedule: Any, loops: list[Any]) -> None:
    schedule.parallel(loops[0])


def _unrolled(schedule: Any, loops: list[Any]) -> None:
    for loop in loops:
        schedule.unroll(loop)


def _deep(schedule: Any, loops: list[Any]) -> None:
    """Loops in loops: rebuilding this one would end the process, or take for ever, and is refused."""
    schedule.split(loops[0], factors=[1] * 3000 + [64])


def _failed(candidate: Candidate, failure: Failure | None, hash: str = "") -> Trial:
    times = () if failure else (1.0,)
    return Trial(hash or candidate.hash, candidate.trace, candidate.args, times, failure, "0001-net", 0, 0.0)


def test_a_worker_gives_its_stages_the_memory_of_the_settings(job: Job) -> None:
    settings = job.workspace.config.read_text().replace("[machine]", "[machine]\nmemory_limit_mb = 256")
    job.workspace.config.write_text(settings)
    job.put("good", "eater")
    fleet = WorkerPool(job.workspace, 1.0)
    try:
        fleet.run("llvm", RunStage(1, job.paths.folder.name, 0, 0, "measure", (0,), 100.0))
        reports = []
        while not reports:
            reports = list(fleet.reports(select.select(fleet.descriptors(), [], [], 0.2)[0]))
    finally:
        fleet.stop()
    assert reports[0].outcome == "done"
    assert job.found() == {"good": "ok", "eater": "measure memory"}
    assert "MiB of memory" in job.reason("eater")


class TestPoison:
    def test_a_candidate_that_kills_its_stage_twice_is_found_out_and_the_others_are_measured(self, job: Job) -> None:
        job.put("good", "assassin", "also_good")
        assert os.WTERMSIG(job.run(attempt=0)) == signal.SIGKILL
        assert os.WTERMSIG(job.run(attempt=1)) == signal.SIGKILL
        assert job.run(attempt=2) == 0
        assert job.found() == {"good": "ok", "assassin": "measure crash", "also_good": "ok"}
        assert job.reason("assassin") == "its stage died at it 2 times in a row"
        assert job.quarantined() == {"assassin"}

    def test_a_candidate_found_out_does_not_count_against_the_stage_when_it_dies_at_another(self, job: Job) -> None:
        job.put("assassin", "good", "second_assassin")
        explained = []
        for attempt in range(4):
            assert os.WTERMSIG(job.run(attempt)) == signal.SIGKILL
            explained.append(explained_attempts(job.paths, 0, 0, attempt))
        assert explained == [0, 0, 2, 2]
        assert explained_attempts(job.paths, 0, 0, 9) == 0, "this attempt left no note"
        assert job.run(attempt=4) == 0
        assert job.found() == {"assassin": "measure crash", "good": "ok", "second_assassin": "measure crash"}

    def test_a_daemon_does_not_give_up_a_task_for_two_of_them(self, job: Job) -> None:
        job.put("assassin", "good", "second_assassin")
        daemon = [sys.executable, "-m", "autotune", "--workspace", str(job.workspace.root), "daemon", "run", "--drain"]
        subprocess.run(daemon, timeout=120, capture_output=True, check=False)
        ended = {"assassin": "measure crash", "good": "ok", "second_assassin": "measure crash"}
        assert job.found().items() >= ended.items()
        failed = [line for line in job.paths.journal.read_text().splitlines() if '"stage-failed"' in line]
        assert sum('"measure"' in line for line in failed) == 4

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
        self, job: Job, make_job: Callable[..., JobPaths], libraries: Path
    ) -> None:
        """The other one has a log of its own: another number of threads, or a log that was lost."""
        job.put("segfault", "good")
        job.run()
        second = Job(job.workspace, make_job(id=2, name="other", tasks=1, target_key="llvm-other"), libraries)
        second.put("segfault", "good")
        assert second.run() == 0
        assert second.found() == {"segfault": "measure crash", "good": "ok"}
        assert second.reason("segfault") == "in quarantine: killed by SIGSEGV"

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
