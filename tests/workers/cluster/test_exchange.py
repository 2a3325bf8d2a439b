"""What a node lacks of a workspace is sent, once; what it has written itself is not sent back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.config import load_config
from autotune.processes.messages import RunStage
from autotune.storage import formats
from autotune.storage.claim_outcomes import ClaimOutcome, ClaimOutcomes
from autotune.storage.formats import Candidate, Failure, StageFile, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, TaskLogPaths, Workspace
from autotune.storage.quarantine import Quarantine, Quarantined
from autotune.storage.tuning_log import TuningLog
from autotune.workers.cluster import exchange
from autotune.workers.cluster.exchange import NodeCopy, merge, merge_trials
from autotune.workers.cluster.parcel import Parcel, Scratch, StageFiles

Make = Callable[..., StageFiles]


@pytest.fixture
def job(make_job: Callable[..., JobPaths]) -> JobPaths:
    return make_job(1, "net", tasks=2)


@pytest.fixture
def stage(workspace: Workspace, job: JobPaths) -> Make:
    def make(kind: formats.Kind = "search", round: int = 0, place: Workspace = workspace) -> StageFiles:
        return StageFiles(place, read_spec(job), RunStage(1, job.folder.name, 0, round, kind, (0,), 60.0))

    return make


@pytest.fixture
def copy(workspace: Workspace) -> NodeCopy:
    return NodeCopy(workspace, cache(TuningLog))


def sent(copy: NodeCopy, stage: StageFiles) -> Parcel:
    return Parcel.unpack(copy.parcel(stage, load_config(copy.workspace.config)).pack())


def trial(hash: str) -> Trial:
    return Trial(hash, ["trace", 1, None], [], (1.0, 2.5), None, "0001-net", 0, 5.0)


def log(stage: StageFiles) -> TuningLog:
    return TuningLog(stage.log)


def name(stage: StageFiles) -> str:
    return stage.log.relative_to(stage.workspace.root).as_posix()


def test_what_a_node_has_is_not_sent_again(workspace: Workspace, job: JobPaths, stage: Make, copy: NodeCopy) -> None:
    job.tasks.mkdir()
    job.task(0).write_text("program")
    first = sent(copy, stage())
    assert {"autotune.toml", "jobs/0001-net/spec.json", "jobs/0001-net/tasks/000.json"} <= set(first.files)
    assert "jobs/0001-net/stages/t001-r0000.json" not in first.files, "that is another task's"
    assert sent(copy, stage()) == Parcel()
    job.task(0).write_text("programme")
    assert sent(copy, stage()) == Parcel({"jobs/0001-net/tasks/000.json": b"programme"})
    job.task(0).unlink()
    assert sent(copy, stage()) == Parcel(deleted=("jobs/0001-net/tasks/000.json",))
    assert sent(copy, stage()) == Parcel()


def test_logs_are_sent_entry_by_entry(workspace: Workspace, stage: Make, copy: NodeCopy) -> None:
    log(stage()).add([trial("a"), trial("b")])
    assert sent(copy, stage()).trials == {name(stage()): (trial("a"), trial("b"))}
    log(stage()).add([trial("c")])
    copy.received(Parcel(trials={name(stage()): (trial("d"),)}))
    log(stage()).add([trial("d")])
    entry = Quarantined("c", {"kind": "llvm"}, "0" * 16, Failure("build", "crash", "SIGSEGV"), "0001-net", 5.0)
    Quarantine(workspace.quarantine).add([entry])
    again = sent(copy, stage())
    assert (again.trials, again.quarantined) == ({name(stage()): (trial("c"),)}, (entry,))
    assert sent(copy, stage()) == Parcel()


def test_what_a_stage_writes_on_a_node_gets_into_the_workspace(
    workspace: Workspace, job: JobPaths, stage: Make, copy: NodeCopy
) -> None:
    scratch = Scratch.make()
    try:
        there = stage("build", place=scratch.workspace)
        scratch.put(sent(copy, stage("build")), there)
        written = scratch.watch(there)
        library = there.job.artifacts_of(0, 0) / "a.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"code")
        formats.write(there.job.stage(0, 1), StageFile(0, 1, "search"))
        formats.write(there.job.stage(0, 0), StageFile(0, 0, "measure", (Candidate("a", {}, [], "a.so"),)))
        log(there).add([trial("x")])
        parcel = Parcel.unpack(written().pack())
        for _ in range(2):  # after an error it is merged again
            merge(stage("build"), parcel, copy.logs)
        copy.received(parcel)
        assert (job.artifacts_of(0, 0) / "a.so").read_bytes() == b"code"
        assert formats.read(StageFile, job.stage(0, 0)).kind == "measure"
        assert formats.read(StageFile, job.stage(0, 1)).kind == "search"
        assert [item.hash for item in log(stage()).trials()] == ["x"]
        assert written().trials == {}, "they were told"
        assert sent(copy, stage("measure")) == Parcel(), "the node that built has the libraries"
        other = NodeCopy(workspace, cache(TuningLog))
        assert "jobs/0001-net/artifacts/t000-r0000/a.so" in sent(other, stage("measure")).files
    finally:
        scratch.remove()
    assert not scratch.workspace.root.exists()


def test_what_was_learnt_of_tasks_of_other_jobs_is_found_on_the_node(
    workspace: Workspace, stage: Make, copy: NodeCopy
) -> None:
    other = workspace.tuning_log(read_spec(stage().job).target_key, "f" * 16)
    TuningLog(other.records).add([trial("z")])
    other.features.write_bytes(b"features")
    scratch = Scratch.make()
    try:
        there = stage("train", place=scratch.workspace)
        scratch.put(sent(copy, stage("train")), there)
        (found,) = scratch.workspace.tuning_logs(there.spec.target_key)
        assert found.features.read_bytes() == b"features"
    finally:
        scratch.remove()


def test_a_round_that_has_gone_on_is_not_put_back(job: JobPaths, stage: Make, copy: NodeCopy) -> None:
    """Two nodes work on two rounds of a task: the one that ends the first does not restart the second."""
    following = job.stage(0, 1)
    formats.write(following, StageFile(0, 1, "build"))
    late = {f"jobs/0001-net/stages/{following.name}": b"{}"}
    merge(stage("train"), Parcel(late, (f"jobs/0001-net/stages/{job.stage(0, 0).name}",)), copy.logs)
    assert formats.read(StageFile, following).kind == "build"
    assert not job.stage(0, 0).exists()


def test_a_library_that_a_node_deleted_is_deleted_here_even_if_it_is_merged_again(job: JobPaths, stage: Make) -> None:
    library = job.artifacts_of(0, 0) / "a.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"code")
    for _ in range(2):
        merge(stage("measure"), Parcel(deleted=("jobs/0001-net/artifacts/t000-r0000/a.so",)), cache(TuningLog))
        assert not library.exists()


def test_a_node_cannot_write_what_its_stage_does_not(workspace: Workspace, job: JobPaths, stage: Make) -> None:
    """A stage file of another task, a spec, or a path out of the workspace."""
    spec = job.spec.read_bytes()
    names = (
        "jobs/0001-net/spec.json",
        "jobs/0001-net/stages/t001-r0000.json",
        "../outside",
        "logs/tuning/../../up.npz",
    )
    merge(stage("build"), Parcel(dict.fromkeys(names, b"bad"), names), cache(TuningLog))
    assert job.spec.read_bytes() == spec and job.stage(1, 0).exists()
    assert not (workspace.root.parent / "outside").exists() and not (workspace.root / "up.npz").exists()


def test_a_late_answer_adds_only_trials_of_new_candidates(stage: Make, copy: NodeCopy) -> None:
    log(stage()).add([trial("a")])
    late = Parcel({"jobs/0001-net/stages/t000-r0000.json": b"late"}, (), {name(stage()): (trial("a"), trial("b"))})
    slower = replace(trial("a"), times_us=(9.0,))
    merge_trials(stage("measure"), replace(late, trials={name(stage()): (slower, trial("b"))}), copy.logs)
    assert log(stage()).trials() == [trial("a"), trial("b")]


def test_the_copy_of_a_dead_process_is_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = Scratch.make()
    dead.lock.release()
    alive = Scratch.make()
    assert not dead.workspace.root.exists() and alive.workspace.root.exists()
    third = Scratch.make()
    assert alive.workspace.root.exists()
    for scratch in (alive, third):
        scratch.remove()


def test_of_a_job_that_was_deleted_only_the_trials_are_kept(job: JobPaths, stage: Make) -> None:
    build = stage("build")
    shutil.rmtree(job.folder)
    parcel = Parcel({"jobs/0001-net/stages/t000-r0000.json": b"{}"}, (), {name(build): (trial("a"),)})
    merge(build, parcel, cache(TuningLog))
    assert not job.folder.exists() and log(build).trials() == [trial("a")]


def test_what_became_of_doubtful_schedules_is_known_on_every_node(
    workspace: Workspace, stage: Make, copy: NodeCopy
) -> None:
    failed = ClaimOutcome("a", "rebuild", 5.0, reason="killed by SIGSEGV")
    later = ClaimOutcome("b", "rebuild", 6.0, reason="killed by SIGSEGV")
    ClaimOutcomes(TaskLogPaths(stage().log).claims).add([failed])
    scratch = Scratch.make()
    try:
        there = stage(place=scratch.workspace)
        scratch.put(sent(copy, stage()), there)
        written = scratch.watch(there)
        outcomes = ClaimOutcomes(TaskLogPaths(there.log).claims)
        assert outcomes.known("rebuild", 7.0) == {"a": failed}
        outcomes.add([later])
        merge(stage(), Parcel.unpack(written().pack()), copy.logs)
    finally:
        scratch.remove()
    assert ClaimOutcomes(TaskLogPaths(stage().log).claims).known("rebuild", 7.0) == {"a": failed, "b": later}


@pytest.mark.parametrize(("name", "replaced"), [("stage.json", True), ("kernel.so", False)])
def test_a_file_is_replaced_whole_unless_it_is_a_library(tmp_path: Path, name: str, replaced: bool) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    open_already = tmp_path / "open"
    open_already.hardlink_to(path)
    exchange._publish(path, b"new")
    assert (path.read_bytes(), open_already.read_bytes()) == (b"new", b"old" if replaced else b"new")
