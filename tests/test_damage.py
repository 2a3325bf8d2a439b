"""Whatever happens to a file of the queue: what can be saved is saved, and every command says a line at most.

Every kind of file x every kind of damage, at the level of the ledger and the commands; `end_to_end` has the daemon.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import _run
from autotune.commands.submit.publish import Submission, publish
from autotune.config import Config
from autotune.daemon.queued_job import QueuedJob
from autotune.errors import DamagedFile, NewerFormat, StorageError
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.storage import atomic, formats
from autotune.storage.daemon_info import DaemonInfo
from autotune.storage.formats import Candidate, JobState, StageFile, Trial
from autotune.storage.identity import Identity
from autotune.storage.job_files import check_model, read_spec, read_stage
from autotune.storage.journal import StageDone
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

Make = Callable[..., JobPaths]
MODEL = b"a model, of a few bytes more than twenty"
SPOILT = ("torn", "flipped", "zeros", "empty", "missing", "folder", "newer")


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "torn":
        path.write_bytes(data[:-3])
    elif how == "flipped":
        path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    elif how == "zeros":
        path.write_bytes(bytes(len(data)))
    elif how == "empty":
        path.touch()
    elif how == "folder":
        path.mkdir()
        (path / "inside").write_text("kept")
    elif how == "newer":
        path.write_bytes(re.sub(rb'("version": ?)\d+', rb"\g<1>99", data))


@pytest.fixture
def queue(workspace: Workspace, make_job: Make) -> tuple[JobPaths, JobPaths]:
    """A job to be spoilt, with everything that a job has, and one to be left alone."""
    checked = {"model_size": len(MODEL), "model_crc32": zlib.crc32(MODEL)}
    first = make_job(1, "net", state=JobState("running"), tasks=2, **checked)
    second = make_job(2, "other")
    first.model.write_bytes(MODEL)
    log(workspace).add([Trial("a", [], [], (5.0,), None, "0001-net", 3, 0.0)])
    QueuedJob.open(workspace, first, Config()).journal.append(StageDone(kind="search", began=1.0, seconds=1.0))
    atomic.publish_json(workspace.last_id, "autotune-last-id", 1, {"id": 2})
    formats.write(workspace.daemon_info, DaemonInfo(Identity.current().to_json(), 0.0, "interleave"))
    return first, second


def log(workspace: Workspace) -> TuningLog:
    return TuningLog(workspace.tuning_log("llvm-test", f"{0:016x}").records)


def place(workspace: Workspace, job: JobPaths, kind: str) -> Path:
    logs = workspace.tuning_log("llvm-test", f"{0:016x}").records
    others = {"stage": job.stage(0, 0), "trials": logs}
    return others[kind] if kind in others else getattr(job if hasattr(job, kind) else workspace, kind)


COMMANDS = (
    "status", "status --json", "logs 1", "wait 1 --timeout 0", "hold 1", "release 1", "retry 1", "clean --finished",
    "cancel 1", "status 1", "daemon status", "report 1",
)  # fmt: skip
KINDS = ("spec", "control", "state", "journal", "stage", "trials", "last_id", "daemon_info", "config")
DOCTORED = [("spec", "folder"), ("config", "flipped")]  # by default


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_trips_and_the_other_job_is_as_it_was(
    workspace: Workspace, queue: tuple[JobPaths, JobPaths], kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(place(workspace, queue[0], kind), how)
    for words in COMMANDS:
        says_a_line_at_most(workspace, words, capsys)
    other = QueuedJob.open(workspace, queue[1], Config())
    assert other.active and len(other.rounds.stages) == 2


def says_a_line_at_most(workspace: Workspace, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = _run(["--workspace", str(workspace.root), *words.split()])
    said = capsys.readouterr()
    assert code in (0, 1, 2, 124) and "Traceback" not in said.err + said.out, (words, said.err)
    assert len(said.err.splitlines()) <= (1 if code else 0), (words, said.err)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param(kind, how, marks=[pytest.mark.slow] * ((kind, how) not in DOCTORED))
        for kind in KINDS
        for how in SPOILT
    ],
)
def test_doctor_does_not_trip(
    workspace: Workspace, queue: tuple[JobPaths, JobPaths], kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(place(workspace, queue[0], kind), how)
    says_a_line_at_most(workspace, "doctor", capsys)


@pytest.mark.parametrize(
    ("kind", "how", "words", "code", "line"),
    [
        ("spec", "zeros", "export 1", 1, "spec.json is damaged"),
        ("spec", "missing", "export 1", 1, "spec.json is missing"),
        ("spec", "newer", "export 1", 1, "a newer autotune wrote it"),
        ("model", "flipped", "export 1", 1, "model.onnx is damaged; submit the model again"),
        ("model", "missing", "export 1", 1, "model.onnx is missing; submit the model again"),
        ("control", "torn", "release 1", 0, ""),
        ("control", "newer", "release 1", 1, "a newer autotune wrote it"),
        ("state", "zeros", "hold 1", 0, ""),
        ("config", "torn", "export 1", 2, "autotune.toml:2: unterminated string"),
        ("config", "zeros", "daemon run --drain", 2, "autotune.toml:1"),
        ("config", "folder", "daemon run --drain", 1, "is a directory"),
        ("config", "torn", "submit x.onnx", 2, "autotune.toml:2: unterminated string"),
        ("daemon_info", "zeros", "daemon stop", 0, ""),
    ],
)
def test_who_needs_a_damaged_file_says_so_in_a_line(
    workspace: Workspace,
    queue: tuple[JobPaths, JobPaths],
    capsys: pytest.CaptureFixture[str],
    kind: str,
    how: str,
    words: str,
    code: int,
    line: str,
) -> None:
    spoil(place(workspace, queue[0], kind), how)
    output = ["--output", str(workspace.root / "out")] if words.startswith("export") else []
    assert _run(["--workspace", str(workspace.root), *words.split(), *output]) == code
    said = capsys.readouterr().err
    assert line in said and len(said.splitlines()) == (1 if code else 0), said
    assert not list((workspace.root / "out").glob("*"))


class TestTheLastId:
    """The number of the next job, taken from the folders where the file is of no use."""

    @pytest.mark.parametrize("how", [how for how in SPOILT if how != "newer"])
    def test_no_number_is_given_twice(self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str) -> None:
        spoil(workspace.last_id, how)
        assert [enqueue(workspace).id for _ in range(2)] == [3, 4]

    def test_a_newer_autotunes_numbers_are_not_guessed(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths]
    ) -> None:
        spoil(workspace.last_id, "newer")
        with pytest.raises(NewerFormat):
            enqueue(workspace)
        assert [job.id for job in workspace.job_list()] == [1, 2]
        assert not list(workspace.jobs.glob(".incoming-*"))


def enqueue(workspace: Workspace) -> formats.JobSpec:
    request = Submission(Path("third.onnx"), TuningOptions(target="simulated"))
    answer = ImportAnswer({"kind": "simulated"}, "simulated-test", (), (), ())
    return publish(workspace, Config(), request, answer)


@pytest.mark.parametrize("how", [how for how in SPOILT if how not in ("newer",)])
class TestTheLedger:
    def test_a_spoilt_stage_is_set_aside_and_its_task_searched_again(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str
    ) -> None:
        path = queue[0].stage(0, 0)
        libraries = queue[0].artifacts_of(0, 0)
        libraries.mkdir(parents=True)
        spoil(path, how)
        ledger = QueuedJob.open(workspace, queue[0], Config())
        assert {(id.task, id.round) for id in ledger.rounds.stages} == {
            (0, 4),
            (1, 0),
        }  # 3 of task 0 is in the log
        assert os.path.lexists(path.with_name(f"{path.name}.damaged")) == (how != "missing")
        assert not libraries.exists(), "they belong to no stage"
        assert ledger.view().trials_done == 1

    def test_a_spoilt_stage_is_found_while_it_runs_too(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str
    ) -> None:
        ledger = QueuedJob.open(workspace, queue[0], Config())
        spoil(queue[0].stage(1, 0), how)
        ledger.refresh(1)
        assert {id.task for id in ledger.rounds.stages} == {0, 1}

    def test_a_spoilt_state_is_written_anew(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str
    ) -> None:
        spoil(queue[0].state, how)
        QueuedJob.open(workspace, queue[0], Config()).publish("running", None)
        assert formats.read(JobState, queue[0].state).trials_done == 1

    def test_a_spoilt_control_holds_the_job(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str
    ) -> None:
        spoil(queue[0].control, how)
        assert not QueuedJob.open(workspace, queue[0], Config()).active
        assert _run(["--workspace", str(workspace.root), "release", "1"]) == 0
        assert QueuedJob.open(workspace, queue[0], Config()).active

    def test_a_spoilt_spec_is_named(self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str) -> None:
        spoil(queue[0].spec, how)
        with pytest.raises(DamagedFile, match="spec.json"):
            QueuedJob.open(workspace, queue[0], Config())

    def test_a_spoilt_tuning_log_takes_trials_again(
        self, workspace: Workspace, queue: tuple[JobPaths, JobPaths], how: str
    ) -> None:
        spoil(log(workspace).path, how)
        log(workspace).add([Trial("b", [], [], (6.0,), None, "0001-net", 4, 0.0)])
        assert "b" in {trial.hash for trial in log(workspace).trials()}


def test_a_stage_of_a_newer_version_stays_where_it_is(workspace: Workspace, queue: tuple[JobPaths, JobPaths]) -> None:
    spoil(queue[0].stage(0, 0), "newer")
    with pytest.raises(NewerFormat, match="newer autotune"):
        QueuedJob.open(workspace, queue[0], Config())
    assert queue[0].stage(0, 0).exists()


@pytest.mark.parametrize("folder", ["stages"])
def test_a_folder_of_the_job_that_is_gone_or_a_file_comes_back(
    workspace: Workspace, queue: tuple[JobPaths, JobPaths], folder: str
) -> None:
    place = queue[0].folder / folder
    place.rename(queue[0].folder / "elsewhere")
    assert len(QueuedJob.open(workspace, queue[0], Config()).rounds.stages) == 2
    place.rename(queue[0].folder / "elsewhere2")
    place.write_text("in the way")
    assert len(QueuedJob.open(workspace, queue[0], Config()).rounds.stages) == 2
    assert place.with_name(f"{folder}.damaged").read_text() == "in the way"


def test_stray_files_disturb_nobody(workspace: Workspace, queue: tuple[JobPaths, JobPaths]) -> None:
    (workspace.jobs / "0009-file").write_text("")
    (queue[0].stages / "t000-r0000.json.swp").write_text("")
    (queue[0].folder / "notes.txt").write_text("")
    assert [job.id for job in workspace.job_list()] == [1, 2]
    assert len(QueuedJob.open(workspace, queue[0], Config()).rounds.stages) == 2


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63])
@pytest.mark.parametrize("name", ["priority", "trials_per_round", "trials", "seed"])
def test_a_spec_with_a_number_that_is_too_large_to_compute_with_is_damaged(
    make_job: Make, name: str, number: int
) -> None:
    job = make_job(**{name: number})
    with pytest.raises(DamagedFile, match=name):
        read_spec(job)


class TestNothingLeadsOutOfTheWorkspace:
    @pytest.mark.parametrize("library", ["../../x.so", "/tmp/x.so", "b.so", "a.so/../../x.so", "b"])
    def test_a_library(self, workspace: Workspace, make_job: Make, library: str) -> None:
        paths = make_job(tasks=1)
        formats.write(paths.stage(0, 0), StageFile(0, 0, "measure", (Candidate("a", [], [], library),)))
        with pytest.raises(DamagedFile, match="library"):
            read_stage(paths, paths.stage(0, 0), read_spec(paths))

    @pytest.mark.parametrize("hash", ["", "..", "../x", "/x", ".hidden", "a\0b"])
    def test_a_candidate(self, workspace: Workspace, make_job: Make, hash: str) -> None:
        paths = make_job(tasks=1)
        formats.write(paths.stage(0, 0), StageFile(0, 0, "build", (Candidate(hash, [], []),)))
        with pytest.raises(DamagedFile):
            read_stage(paths, paths.stage(0, 0), read_spec(paths))

    @pytest.mark.parametrize("key", ["", "..", "../..", "a/b", "/etc", "a\n", ".x"])
    def test_a_target(self, make_job: Make, key: str) -> None:
        with pytest.raises(DamagedFile, match="no file name"):
            read_spec(make_job(target_key=key))

    @pytest.mark.parametrize("hash", ["", "..", "../../../etc/passwd", "x" * 16, "0" * 15])
    def test_a_task(self, make_job: Make, hash: str) -> None:
        with pytest.raises(DamagedFile, match="no file name"):
            read_spec(make_job(tasks=(formats.TaskSpec("conv", hash, 1, "1", 0.5, True),)))

    def test_another_jobs_spec(self, workspace: Workspace, make_job: Make) -> None:
        """As after `cp -r jobs/0001-net jobs/0002-copy`: two jobs would write to one."""
        make_job(1).folder.rename(workspace.jobs / "0002-copy")
        with pytest.raises(DamagedFile, match="that of job 1"):
            read_spec(workspace.job(2, "copy"))

    def test_another_rounds_stage(self, workspace: Workspace, make_job: Make) -> None:
        paths = make_job(tasks=1)
        paths.stage(0, 0).rename(paths.stage(0, 7))
        with pytest.raises(DamagedFile, match="round 0"):
            read_stage(paths, paths.stage(0, 7), read_spec(paths))


def test_a_snapshot_that_changed_is_not_exported(make_job: Make) -> None:
    paths = make_job(model_size=5, model_crc32=0x9C8DF3A7)
    for content in (b"mode1", b"", b"model, and more"):
        paths.model.write_bytes(content)
        with pytest.raises(StorageError, match="submit the model again"):
            check_model(paths, read_spec(paths))
    paths.model.unlink()
    with pytest.raises(StorageError, match="is missing"):
        check_model(paths, read_spec(paths))
