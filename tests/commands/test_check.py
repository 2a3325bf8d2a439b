"""`check` says what is wrong with a workspace, and nothing of one that is right."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import schema
from autotune.cli import _run
from autotune.commands import check as checking
from autotune.commands.check import check
from autotune.storage import atomic, formats, trial_index
from autotune.storage.formats import Candidate, JobState, StageFile, TaskProgress, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT, TuningLog
from autotune.tvm_backend.export.library_file import described

HASH = f"{0:016x}"


def trial(hash: str, round: int = 0, job: str = "0001-net", us: float = 5.0) -> Trial:
    return Trial(hash, {}, [], (us,), None, job, round, 0.0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_SETTLE_S", 0.0)


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths]) -> JobPaths:
    """A whole job of one task."""
    paths = make_job(tasks=1)
    paths.model.write_bytes(b"model")
    paths.tasks.mkdir()
    paths.task(0).write_bytes(b"program")
    atomic.publish_json(workspace.last_id, "autotune-last-id", 1, {"id": 1})
    return paths


@pytest.fixture
def log(workspace: Workspace) -> TuningLog:
    return TuningLog(workspace.tuning_log("llvm-test", HASH).records)


def only(workspace: Workspace) -> str:
    (line,) = check(workspace)
    return line


def test_a_whole_workspace_has_nothing_wrong(workspace: Workspace, job: JobPaths, log: TuningLog) -> None:
    log.add([trial("a"), trial("b", us=3.0)])
    formats.write(job.state, JobState("done", trials_done=2, tasks=(TaskProgress(2, 3.0),), finished_at=1.0))
    assert check(workspace) == []


@pytest.mark.parametrize("missing", ["spec.json", "control.json", "model.onnx", "tasks/000.json"])
def test_a_file_of_a_job_is_missing(workspace: Workspace, job: JobPaths, missing: str) -> None:
    (job.folder / missing).unlink()
    assert missing in only(workspace)


def test_two_jobs_with_one_id_and_an_id_that_could_be_given_again(workspace: Workspace, job: JobPaths) -> None:
    atomic.publish_json(workspace.last_id, "autotune-last-id", 1, {"id": 0})
    assert "says 0, but there is a job 1" in only(workspace)
    shutil.copytree(job.folder, workspace.jobs / "0001-other")
    assert any("2 jobs have the id 1" in line for line in check(workspace))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (StageFile(0, 0, "search", (Candidate("a", {}, []),)), "a search of 1 candidates"),
        (StageFile(0, 0, "measure"), "a measure of 0 candidates"),
        (StageFile(0, 3, "search"), "says task 0, round 3"),
        (StageFile(0, 0, "build", (Candidate("a", {}, []), Candidate("a", {}, []))), "waits 2 times"),
    ],
)
def test_a_stage_that_makes_no_sense(workspace: Workspace, job: JobPaths, file: StageFile, words: str) -> None:
    formats.write(job.stage(0, 0), file)
    assert words in "\n".join(check(workspace))


def test_rounds_follow_each_other_but_for_one_after_which_the_model_waits_to_be_timed(
    workspace: Workspace, job: JobPaths
) -> None:
    formats.write(job.stage(0, 2), StageFile(0, 2, "search"))
    assert "[0, 2] of task 0 do not follow each other" in only(workspace)
    formats.write(job.stage(0, 0), StageFile(0, 0, "confirm"))
    formats.write(job.stage(0, 3), StageFile(0, 3, "search"))
    assert check(workspace) == []
    for round in (0, 2, 3):
        job.stage(0, round).unlink()
    assert "task 0 has no stage" in only(workspace)


def test_a_candidate_proposed_again_but_for_one_that_another_job_measured_meanwhile(
    workspace: Workspace, job: JobPaths, log: TuningLog
) -> None:
    log.add([trial("a", round=0), trial("b", job="0002-other")])
    job.stage(0, 0).unlink()
    formats.write(job.stage(0, 1), StageFile(0, 1, "build", (Candidate("a", {}, []), Candidate("b", {}, []))))
    (line,) = check(workspace)
    assert "a" in line and "is in the log from round 0" in line


def test_libraries_of_no_stage_and_a_file_that_was_set_aside(workspace: Workspace, job: JobPaths) -> None:
    job.artifacts_of(0, 0).mkdir(parents=True)
    assert check(workspace) == []
    job.artifacts_of(0, 7).mkdir()
    assert "t000-r0007 belongs to no stage" in only(workspace)
    job.stage(0, 0).with_name("t000-r0007.json.damaged").touch()
    assert any("t000-r0007.json.damaged is damaged and was set aside" in line for line in check(workspace))


@pytest.mark.parametrize(
    ("progress", "words"),
    [(TaskProgress(3, 5.0), "3 trials of task 0, but 1"), (TaskProgress(1, 4.0), "4 us, is not in its log")],
)
def test_a_state_that_the_log_contradicts(
    workspace: Workspace, job: JobPaths, log: TuningLog, progress: TaskProgress, words: str
) -> None:
    log.add([trial("a")])
    state = JobState("done", trials_done=progress.trials, tasks=(progress,), finished_at=1.0)
    formats.write(job.state, state)
    assert words in only(workspace)


class TestLogs:
    def test_an_index_that_fits_and_lies(self, workspace: Workspace, job: JobPaths, log: TuningLog) -> None:
        log.add([trial("a"), trial("b")])
        index = log.path.with_suffix(".index")
        entries, seal = trial_index.read(index) or ([], None)
        assert seal is not None
        trial_index.publish(index, entries[1:], seal)
        assert "ab.index does not have" in only(workspace).replace(HASH, "ab")

    def test_a_candidate_is_there_twice_or_a_record_is_no_trial(self, workspace: Workspace, log: TuningLog) -> None:
        log.add([trial("a")])
        RecordLog(log.path, *FORMAT).append([formats.to_json(trial("a"))])
        assert "candidate a is there 2 times" in only(workspace)
        RecordLog(log.path, *FORMAT).append([{"hash": "b"}])
        assert any("a record (b) is not a trial" in line for line in check(workspace))

    def test_a_line_is_damaged_or_was_set_aside_and_a_torn_tail_is_the_next_writers(
        self, workspace: Workspace, log: TuningLog
    ) -> None:
        log.add([trial("a"), trial("b")])
        data = log.path.read_bytes()
        log.path.write_bytes(data + b"0123abcd {half")
        assert check(workspace) == []
        Path(f"{log.path}.damaged").write_bytes(b"x\n")
        assert "were set aside" in only(workspace)
        Path(f"{log.path}.damaged").unlink()
        log.path.write_bytes(data.replace(b'"hash":"a"', b'"hash":"x"'))
        assert "1 of 3 lines are damaged" in only(workspace)


class TestLeavings:
    def leave(self, workspace: Workspace, name: str, hours: float) -> None:
        path = workspace.jobs / name
        path.touch()
        os.utime(path, (time.time() - 3600 * hours,) * 2)

    def test_of_a_dead_process_after_an_hour_but_not_of_a_living_one(self, workspace: Workspace) -> None:
        self.leave(workspace, f".tmp-{os.getpid()}-ab", hours=1.1)
        self.leave(workspace, f".incoming-{2**22 + 1}-ab", hours=0.5)
        assert check(workspace) == []
        self.leave(workspace, f".tmp-{2**22 + 1}-ab", hours=1.1)
        assert "was left by a process that ended" in only(workspace)


def test_a_stray_worker_and_nothing_that_two_looks_do_not_agree_on(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "strays", lambda _: [12])
    assert only(workspace) == "process 12 is a worker without a daemon"
    looks: list[list[str]] = [["a", "b"], ["b", "c"]]
    monkeypatch.setattr(checking, "_look", lambda _: looks.pop(0))
    assert check(workspace) == ["b"]


class TestLibraries:
    """Folders that an export wrote are checked in place of the workspace."""

    @pytest.fixture
    def exported(self, tmp_path: Path) -> Callable[..., Path]:
        def write(name: str, **changes: Any) -> Path:
            folder = tmp_path / name
            folder.mkdir()
            (folder / "model.so").write_bytes(b"a library " * 1000)
            library = schema.plain(described(folder / "model.so"))
            report = {"target": {"kind": "llvm"}, "threads": 1, "inputs": [], "library": library, **changes}
            (folder / "report.json").write_text(json.dumps(report))
            return folder

        return write

    def test_whole_ones_are_fine(self, exported: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
        assert _run(["check", str(exported("one")), str(exported("two"))]) == 0
        assert "nothing is wrong" in "".join(capsys.readouterr())

    def test_damaged_ones_are_named(self, exported: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
        cut = exported("cut")
        (cut / "model.so").write_bytes(b"a library")
        edited = exported("edited", threads="all")
        assert _run(["check", *map(str, (exported("whole"), cut, edited))]) == 1
        first, second = capsys.readouterr().out.splitlines()
        assert f"{cut / 'model.so'} is damaged" in first and "it has 9 bytes, and 10000 were written" in first
        assert f"{edited / 'report.json'} is damaged: 'threads' must be" in second

    def test_what_is_no_such_folder_is_refused(
        self, exported: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        old = exported("old", library=None)
        for folder, says in ((tmp_path / "none", "holds no exported model"), (old, "is of an earlier version")):
            assert _run(["check", str(folder)]) == 2
            assert says in capsys.readouterr().err
