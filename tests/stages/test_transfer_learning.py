"""What is known of a task elsewhere is tried first and learned from, and counts for no budget."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.processes.messages import RunStage
from autotune.stages import cost_model_file, search, transfer_learning, trial_features
from autotune.stages.stage import Stage
from autotune.storage import device_kind, formats
from autotune.storage.device_kind import DeviceKind
from autotune.storage.formats import Candidate, JobSpec, StageFile, TaskSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

from ..small_networks import tasks_of

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
HERE = DeviceKind(TARGET, "a CPU", {"apache-tvm": "2"})
OLDER = replace(HERE, versions={"apache-tvm": "1"})
OTHER = replace(HERE, device="another CPU")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The dense layer of a small network."""
    return tasks_of("mlp", tmp_path_factory.mktemp("model"), TARGET)[0].program


@pytest.fixture
def job(make_job: Callable[..., JobPaths], workspace: Workspace, program: Any) -> JobPaths:
    from autotune.tvm_backend.search.tasks import program_hash, write_program

    task = TaskSpec("dense", program_hash(program), 1, "1x8", 0.1, True)
    paths = make_job(tasks=(task,), strategy="random", sampler="greedy", target_key=HERE.key)
    formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), target=TARGET))
    paths.tasks.mkdir()
    write_program(paths.task(0), program)
    device_kind.note(workspace, HERE)
    return paths


def stage(workspace: Workspace, paths: JobPaths, count: int = 4, attempt: int = 0, round: int = 0) -> Stage:
    formats.write(paths.stage(0, round), StageFile(0, round, "search"))
    order = RunStage(0, paths.folder.name, 0, round, "search", (0,), 0.0, count=count, attempt=attempt)
    return Stage.load(workspace, Config(), order)


def searched(workspace: Workspace, paths: JobPaths, **order: int) -> tuple[dict[str, Any], list[Candidate]]:
    told = search.run(stage(workspace, paths, **order))
    candidates = list(formats.read(StageFile, paths.stage(0, order.get("round", 0))).candidates)
    paths.stage(0, order.get("round", 0)).unlink()
    return told, candidates


def log(workspace: Workspace, paths: JobPaths, kind: DeviceKind, candidates: list[Candidate], key: str = "") -> None:
    """Log candidates as measured on a kind of device, or in a folder, the last one as the fastest."""
    task = formats.read(JobSpec, paths.spec).tasks[0].hash
    times = range(100, 100 - len(candidates), -1)
    made = [Trial(c.hash, c.trace, c.args, (t,), None, "j", 0, 0.0) for c, t in zip(candidates, times, strict=True)]
    TuningLog(workspace.tuning_log(key or kind.key, task).records).add(made)
    device_kind.note(workspace, kind, key)


@pytest.mark.parametrize("kind", [OLDER, OTHER])
def test_the_best_schedules_known_elsewhere_are_tried_first_and_once(
    workspace: Workspace, job: JobPaths, kind: DeviceKind
) -> None:
    candidates = searched(workspace, job, count=20)[1]
    log(workspace, job, kind, candidates)
    told, first = searched(workspace, job, count=6)
    assert [item.hash for item in first] == [item.hash for item in reversed(candidates[-6:])]
    assert told == {"proposed": 6, "steps": 0, "known_elsewhere": 6}
    log(workspace, job, HERE, first)
    told, second = searched(workspace, job, count=12, round=1)
    assert told["known_elsewhere"] == 10 and len(second) == 12  # sixteen in all
    assert {item.hash for item in second[:10]} == {item.hash for item in candidates[4:14]}
    log(workspace, job, HERE, second)
    assert "known_elsewhere" not in searched(workspace, job, round=2)[0]


def test_claims_for_this_kind_of_device_are_tried_however_many_trials_there_are(
    workspace: Workspace, job: JobPaths
) -> None:
    candidates = searched(workspace, job, count=24)[1]
    log(workspace, job, HERE, candidates[:18])
    log(workspace, job, HERE, candidates[18:], device_kind.claimed(HERE.key))
    told, first = searched(workspace, job, round=1)
    assert [item.hash for item in first] == [item.hash for item in reversed(candidates[-4:])]
    assert told["known_elsewhere"] == 4


def test_a_claim_that_no_such_device_can_meet_is_set_aside_with_a_reason(
    workspace: Workspace, job: JobPaths, caplog: pytest.LogCaptureFixture
) -> None:
    candidates = searched(workspace, job)[1]
    claims = device_kind.claimed(HERE.key)
    log(workspace, job, HERE, candidates[:3], claims)
    task = formats.read(JobSpec, job.spec).tasks[0].hash
    false = Trial(
        candidates[3].hash, candidates[3].trace, candidates[3].args, (0.001,), None, "box:/w/jobs/0001-net", 0, 0.0
    )
    TuningLog(workspace.tuning_log(claims, task).records).add([false])
    _, first = searched(workspace, job, count=3)
    assert [item.hash for item in first] == [item.hash for item in reversed(candidates[:3])]
    assert "dense: 1 imported times, down to 0.001 us, are set aside" in caplog.text


def test_of_two_places_the_one_with_this_processor_comes_first(workspace: Workspace, job: JobPaths) -> None:
    candidates = searched(workspace, job, count=12)[1]
    log(workspace, job, OTHER, candidates[:8])
    log(workspace, job, OLDER, candidates[8:])
    assert [item.hash for item in searched(workspace, job)[1]] == [item.hash for item in reversed(candidates[8:])]


def test_the_cost_model_learns_from_claims_for_this_kind_of_device_before_all_else(
    workspace: Workspace, job: JobPaths
) -> None:
    candidates = searched(workspace, job, count=4)[1]
    log(workspace, job, OLDER, candidates[:3])
    log(workspace, job, HERE, candidates[3:], device_kind.claimed(HERE.key))
    loaded = stage(workspace, job)
    assert [(known.here, len(known.timed)) for known in transfer_learning._logs(loaded, loaded.task)] == [
        (True, 1),
        (False, 3),
    ]


def test_what_no_longer_fits_and_what_killed_the_search_is_left_out(workspace: Workspace, job: JobPaths) -> None:
    candidates = searched(workspace, job, count=4)[1]
    strange = [
        replace(item, hash=f"{at:016x}", trace=[[["Unheard", [], [], []]], []]) for at, item in enumerate(candidates)
    ]
    log(workspace, job, OLDER, [*candidates, *strange])
    _, tried = searched(workspace, job)
    assert [item.hash for item in tried] == [item.hash for item in reversed(candidates)]
    assert "known_elsewhere" not in searched(workspace, job, attempt=1)[0]


def test_a_schedule_that_ends_its_process_as_it_is_rebuilt_ends_no_search(
    workspace: Workspace, job: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.tvm_backend.search import propose

    candidates = searched(workspace, job, count=4)[1]
    log(workspace, job, OLDER, candidates)
    rebuild = propose.rebuild

    def fatal(program: Any, target: Any, trials: Any, excluded: Any) -> Any:
        if trials[0].hash == candidates[2].hash:
            os.kill(os.getpid(), signal.SIGSEGV)
        return rebuild(program, target, trials, excluded)

    monkeypatch.setattr(propose, "rebuild", fatal)
    _, first = searched(workspace, job)
    assert [item.hash for item in first[:3]] == [candidates[index].hash for index in (3, 1, 0)]


def test_trials_of_another_kind_of_target_and_of_points_of_sweeps_tell_nothing(
    workspace: Workspace, job: JobPaths
) -> None:
    candidates = searched(workspace, job)[1]
    log(workspace, job, DeviceKind({"kind": "cuda", "arch": "sm_90"}, "H200"), candidates)
    task = formats.read(JobSpec, job.spec).tasks[0].hash
    private = workspace.tuning_log(OLDER.key + "+sweep", task).records
    TuningLog(private).add(
        [Trial(candidates[0].hash, candidates[0].trace, candidates[0].args, (1.0,), None, "j", 0, 0.0)]
    )
    assert not transfer_learning.has_trials(stage(workspace, job))


def test_the_cost_model_learns_from_trials_elsewhere_and_no_budget_counts_them(
    workspace: Workspace, job: JobPaths
) -> None:
    candidates = searched(workspace, job, count=12)[1]
    strange = replace(candidates[0], hash="f" * 16, trace=[[["Unheard", [], [], []]], []])
    log(workspace, job, OTHER, [*candidates, strange])
    order = stage(workspace, job)
    (features,) = transfer_learning.features_of_trials(order, 100)
    assert len(features.labelled()[0]) == 12 and len(features.hashes) == 13
    assert cost_model_file.update_model(order) == 0 and cost_model_file.is_intact(job)
    assert order.log().trials() == []


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Rebuilds schedules slowly or fatally where an argument says so; returns the hashes tried since the last call."""
    from autotune.tvm_backend.search import propose

    rebuild = propose.rebuild
    path = tmp_path / "tried"

    def noted(program: Any, target: Any, trials: Any, excluded: Any) -> Any:
        with path.open("a") as file:
            file.write(f"{trials[0].hash}\n")
        match trials[0].args:
            case ["fatal"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["slow"]:
                time.sleep(60)
        return rebuild(program, target, trials, excluded)

    def hashes() -> list[str]:
        tried = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return tried

    monkeypatch.setattr(propose, "rebuild", noted)
    return hashes


def test_a_schedule_that_cannot_be_rebuilt_is_left_alone_until_the_next_day(
    workspace: Workspace, job: JobPaths, tried: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = searched(workspace, job, count=4)[1]
    fatal = replace(candidates[3], args=["fatal"])
    log(workspace, job, OLDER, [*candidates[:3], fatal])
    assert len(searched(workspace, job, count=8)[1]) == 8
    assert tried() == [item.hash for item in reversed(candidates)]
    told, first = searched(workspace, job, count=8, round=1)
    assert fatal.hash not in tried() and told["known_elsewhere"] == 3
    log(workspace, job, HERE, first[:3])
    searched(workspace, job, count=8, round=2)
    assert tried() == [], "what became of the others is known, and was measured"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    searched(workspace, job, count=8, round=3)
    assert tried() == [fatal.hash], "the machine may have been the reason"


def test_another_schedule_under_the_hash_of_one_that_failed_is_tried(
    workspace: Workspace, job: JobPaths, tried: Callable[[], list[str]]
) -> None:
    (candidate,) = searched(workspace, job, count=1)[1]
    log(workspace, job, OTHER, [replace(candidate, args=["fatal"])])
    searched(workspace, job, count=1)
    log(workspace, job, OLDER, [candidate])
    tried()
    assert [item.hash for item in searched(workspace, job, count=1, round=1)[1]] == [candidate.hash]
    assert tried() == [candidate.hash]


def test_schedules_that_hang_take_no_longer_together_than_a_build_may(
    workspace: Workspace, job: JobPaths, tried: Callable[[], list[str]]
) -> None:
    """Each of sixteen may hang: one is waited for in a search, and the others wait for the next one."""
    candidates = searched(workspace, job, count=16)[1]
    log(workspace, job, OLDER, [replace(item, args=["slow"]) for item in candidates])
    order = stage(workspace, job)
    order = replace(order, config=replace(order.config, build=replace(order.config.build, timeout_s=0.5)))
    search.run(order)
    assert tried() == [candidates[15].hash]
    formats.write(job.stage(0, 0), StageFile(0, 0, "search"))
    search.run(order)
    assert tried() == [candidates[14].hash]


def test_a_schedule_that_raises_as_its_features_are_read_costs_no_other_trial(
    workspace: Workspace, job: JobPaths, caplog: pytest.LogCaptureFixture
) -> None:
    candidates = searched(workspace, job, count=6)[1]
    strange = replace(candidates[0], hash="f" * 16, trace=[[["Unheard", [], [], []]], []])
    log(workspace, job, HERE, [*candidates, strange])
    order = stage(workspace, job)
    features = trial_features.of_task(order, 0, order.log().trials())
    assert len(features.labelled()[0]) == 6 and len(features.hashes) == 7
    assert cost_model_file.update_model(order) == 7 and cost_model_file.is_intact(job)


def test_a_trial_from_elsewhere_is_read_in_no_process_of_the_stage(
    workspace: Workspace, job: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.tvm_backend.search.features import FeatureExtractor

    candidates = searched(workspace, job, count=4)[1]
    log(workspace, job, OTHER, candidates)
    here = os.getpid()
    of_trials = FeatureExtractor.of_trials

    def apart(self: Any, trials: Any) -> Any:
        assert os.getpid() != here or not trials
        return of_trials(self, trials)

    monkeypatch.setattr(FeatureExtractor, "of_trials", apart)
    (features,) = transfer_learning.features_of_trials(stage(workspace, job), 100)
    assert len(features.labelled()[0]) == 4
