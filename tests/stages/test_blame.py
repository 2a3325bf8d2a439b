"""No candidate is blamed for a damaged task or a full disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.config import load_config
from autotune.errors import DamagedFile, DiskProblem, MachineProblem, disk_problem
from autotune.processes.children import ItemResult
from autotune.processes.messages import RunStage
from autotune.stages import build, measure
from autotune.stages.blame import CandidateProgress
from autotune.stages.on_cpu import CpuBench
from autotune.stages.on_simulated import SimulatedBench
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, StageFile
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.seals import LIBRARY, digest, seal
from autotune.tvm_backend.kernels.verify import Reference

NO = Failure("build", "error", "no")
FULL = OSError(28, "No space left on device")


@pytest.fixture
def stage(workspace: Workspace, make_job: Callable[..., JobPaths]) -> Callable[[str], Stage]:
    def load(target: str) -> Stage:
        paths = make_job(tasks=1, target=target)
        formats.write(paths.stage(0, 0), StageFile(0, 0, "build", (Candidate("a", [], []),)))
        request = RunStage(0, paths.folder.name, 0, 0, "search", (0,), 0.0, count=1)
        return Stage.load(workspace, load_config(workspace.config), request)

    return load


def kind(stage: Stage) -> str:
    return formats.read(StageFile, stage.paths.stage(0, 0)).kind


def fill(*folders: Path) -> None:
    raise disk_problem("write to", folders[0], FULL)


@pytest.mark.parametrize("verify", ["true", "false"])
def test_a_build_whose_task_is_damaged_fails_as_a_whole(
    workspace: Workspace, stage: Callable[[str], Stage], verify: str
) -> None:
    workspace.config.write_text(workspace.config.read_text() + f"[measure]\nverify = {verify}\n")
    loaded = stage("llvm")
    loaded.paths.tasks.mkdir()
    loaded.paths.task(0).write_text("{")
    with pytest.raises(DamagedFile, match=r"000\.json"):
        build.run(loaded)
    assert kind(loaded) == "build"


class UnfitBench(SimulatedBench):
    """A machine on which everything crashes, known good kernels included."""

    suspect = ("crash",)

    def builder(self) -> Callable[[Candidate], str]:
        return lambda candidate: os.abort()

    def recorded(self, candidate: Candidate) -> None:
        os.abort()

    def check(self, candidates: Sequence[Candidate] = ()) -> None:
        raise MachineProblem("no linker")


def unfit(stage: Stage) -> Stage:
    """Give a stage a machine that is unfit."""
    vars(stage)["bench"] = UnfitBench(stage)
    return stage


def test_a_build_in_which_most_fail_on_a_bad_machine_is_built_again(stage: Callable[[str], Stage]) -> None:
    loaded = unfit(stage("simulated"))
    with pytest.raises(MachineProblem):
        build.run(loaded)
    assert kind(loaded) == "build"


def measuring(stage: Stage, *names: str) -> Stage:
    """The measurement of candidates that were built."""
    folder = stage.paths.artifacts_of(0, 0)
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.so").write_bytes(b"x")
    built = tuple(Candidate(name, [], [], f"{name}.so", seal(LIBRARY, digest(b"x"))) for name in names)
    return replace(stage, file=StageFile(0, 0, "measure", built))


def test_a_measurement_that_fails_on_a_bad_machine_is_no_trial(stage: Callable[[str], Stage]) -> None:
    loaded = unfit(measuring(stage("simulated"), "a"))
    with pytest.raises(MachineProblem):
        measure.run(loaded)
    assert not loaded.log().trials()
    library = loaded.paths.artifacts_of(0, 0) / "a.so"
    assert library.exists(), "what was built is measured when the machine is mended"


def test_a_machine_that_was_found_to_be_good_is_not_tried_again_for_the_next_candidate_that_crashes(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[Sequence[Candidate]]()
    monkeypatch.setattr(UnfitBench, "check", lambda _, candidates: tried.append(candidates))
    loaded = unfit(measuring(stage("simulated"), "a", "b"))
    measure.run(loaded)
    assert [trial.failure is not None for trial in loaded.log().trials()] == [True, True]
    assert len(tried) == 1


def test_a_build_that_fails_on_a_full_disk_is_built_again(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = stage("simulated")
    monkeypatch.setattr(build, "isolated", lambda items, *_, **__: [(item, ItemResult("error")) for item in items])
    monkeypatch.setattr(build, "check_room", fill)
    with pytest.raises(DiskProblem):
        build.run(loaded)
    assert kind(loaded) == "build"


def test_a_reference_that_fails_on_a_full_disk_is_made_again(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = stage("llvm")
    monkeypatch.setattr(Stage, "program", None)
    monkeypatch.setattr(build, "isolated", lambda items, *_, **__: [(item, ItemResult("error")) for item in items])
    monkeypatch.setattr(build, "check_room", fill)
    with pytest.raises(DiskProblem):
        build.ensure_reference(loaded)
    assert not loaded.workspace.tuning_log(loaded.spec.target_key, loaded.task.hash).reference.exists()


def test_a_reference_that_could_not_be_made_is_tried_again_later(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = stage("llvm")
    outcomes = [ItemResult("memory", reason="needs 9 GB"), ItemResult("timeout", reason="slow")]
    monkeypatch.setattr(Stage, "program", None)
    monkeypatch.setattr(build, "isolated", lambda items, *_, **__: [(item, outcomes.pop(0)) for item in items])
    monkeypatch.setattr(CpuBench, "check", lambda *_: None)
    path = loaded.workspace.tuning_log(loaded.spec.target_key, loaded.task.hash).reference

    def problem(age_s: float) -> str:
        if path.exists():
            os.utime(path, (time.time() - age_s,) * 2)
        return str(build.ensure_reference(loaded)[0].problem)

    assert problem(0) == problem(500) == "memory: needs 9 GB"
    assert problem(700) == problem(700) == problem(2300) == "timeout: slow"
    outcomes.append(ItemResult("error", reason="no"))
    assert problem(2500) == "error: no"


def test_a_measurement_says_why_a_task_is_not_verified(
    stage: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = replace(stage("simulated"), file=StageFile(0, 0, "measure", (Candidate("a", [], [], failure=NO),)))
    monkeypatch.setattr(build, "ensure_reference", lambda _: (Reference(problem="memory: needs 9 GB"), 0.0))
    assert measure.run(loaded)["unverified"] == "memory: needs 9 GB"


def test_a_note_that_the_disk_does_not_take_is_done_without(stage: Callable[[str], Stage]) -> None:
    loaded = stage("llvm")
    note = loaded.paths.in_progress(0, 0)
    note.mkdir()
    with pytest.raises(OSError, match="directory"):
        note.write_text("")
    progress = CandidateProgress(loaded, None)
    progress.begin(Candidate("a", [], []))
    assert (progress.quarantined, progress.explained, list(note.iterdir())) == ([], 0, [])
