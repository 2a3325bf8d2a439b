"""A simulated device: stages take their time, candidates answer for themselves, and a rerun changes nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.config import load_config
from autotune.errors import DamagedFile, DiskProblem
from autotune.planning.scenario import Duration, Scenario, SimulatedJob
from autotune.planning.view import MachineResources
from autotune.processes.messages import RunStage
from autotune.stages import build, measure, on_simulated, search, train
from autotune.stages.on_simulated import SimulatedBench
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import Candidate, Failure, StageFile, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog


@pytest.fixture
def job(workspace: Workspace, make_job: Callable[..., JobPaths], simulate: Callable[..., None]) -> Any:
    """Loads stages of a job with one task, eight trials a round, on devices that are a hundred times as fast."""

    def load(round: int = 0, device: str = "simulated:gpu0", **given: Any) -> Stage:
        paths = workspace.job(1, "net")
        if not paths.spec.exists():
            simulate(**{"speed": 100.0, **given.pop("settings", {})})
            make_job(tasks=1, target="simulated", **given)
        if not paths.stage(0, round).exists():
            formats.write(paths.stage(0, round), StageFile(0, round, "search"))
        request = RunStage(0, paths.folder.name, 0, round, "search", (0,), 0.0, count=8, device=device)
        return Stage.load(workspace, load_config(workspace.config), request)

    return load


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long stages slept, in this process; they do not."""
    durations: list[float] = []
    monkeypatch.setattr(on_simulated.time, "sleep", durations.append)
    return durations


def round_of(job: Any, round: int = 0, **given: Any) -> list[dict[str, Any]]:
    """Run a whole round."""
    return [stage.run(job(round, **given)) for stage in (search, build, measure, train)]


def test_a_round_goes_through_the_stages_of_any_round(job: Any) -> None:
    searched, built, measured, trained = round_of(job)
    assert searched == {"proposed": 8}
    assert (built["built"], built["failed"]) == (8, 0)
    assert (measured["measured"], measured["failed"]) == (8, 0)
    assert trained == {"trained_on": 8}
    assert not job(1).paths.artifacts_of(0, 0).exists()
    assert [path.name for path in job(1).paths.stage_files()] == ["t000-r0001.json"]


def test_no_round_proposes_what_is_known_or_on_its_way(job: Any) -> None:
    search.run(job())
    search.run(job(1))
    first, second = (formats.read(StageFile, job().paths.stage(0, round)).candidates for round in (0, 1))
    assert not {item.hash for item in first} & {item.hash for item in second}


def test_a_library_that_is_not_what_was_built_is_built_again(job: Any) -> None:
    search.run(job())
    build.run(job())
    (victim, *_) = job().paths.artifacts_of(0, 0).iterdir()
    victim.write_bytes(b"")
    assert measure.run(job())["rebuild"]
    assert job().file.kind == "build"


def test_a_candidate_whose_library_is_lost_while_it_is_measured_is_not_blamed(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clean` may have removed the job."""
    search.run(job())
    build.run(job())

    def lose(bench: SimulatedBench, _: Candidate) -> Any:
        shutil.rmtree(bench.stage.paths.artifacts)
        raise RuntimeError("cannot open shared object file")

    monkeypatch.setattr(SimulatedBench, "recorded", lose)
    with pytest.raises(DamagedFile, match="was lost while it was measured"):
        measure.run(job())
    assert job().log().trials() == []


def test_a_job_that_is_gone_gets_no_folder_again(job: Any) -> None:
    search.run(job())
    loaded = job()
    shutil.rmtree(loaded.paths.folder)
    with pytest.raises(DiskProblem, match="no such file"):
        build.run(loaded)
    assert not loaded.paths.folder.exists()


def test_the_best_time_falls_with_the_trials(job: Any) -> None:
    for round in range(6):
        round_of(job, round)
    times = [trial.median_us or 0.0 for trial in job(6).log().trials()]
    assert min(times[:8]) > min(times[8:16]) > min(times)


def test_a_candidate_answers_the_same_whenever_it_is_asked(job: Any) -> None:
    search.run(job())
    candidate = job().file.candidates[3]
    first, second = (job().bench.open(None).time(candidate, None) for _ in range(2))
    assert first == second


def test_a_stage_takes_as_long_as_the_simulator_has_it_take(job: Any) -> None:
    """The comparison of the two says something about the daemon only if this holds."""
    means = {"search": 10.0, "build": 15.0, "measure": 3.0, "train": 1.0}
    seconds = {kind: Duration(mean, 0.3) for kind, mean in means.items()}
    scenario = Scenario(MachineResources((0,)), (SimulatedJob(1, "net", "simulated", 1, 64, seconds, 8),), seed=5)
    stage = job(2, settings={"spread": 0.3, "speed": 1.0}, seed=5)
    for kind in means:
        drawn = stage.bench.seconds(kind)
        assert drawn == pytest.approx(scenario.seconds(scenario.jobs[0], 0, 2, kind, 8))
        assert drawn != pytest.approx(means[kind])


def test_the_job_may_say_how_long_its_stages_take(job: Any) -> None:
    stage = job(settings={"speed": 10.0})
    changed = Stage(stage.workspace, stage.paths, _with_target(stage.spec, build_s=40.0), *_rest(stage))
    assert SimulatedBench(changed).seconds("build") == pytest.approx(4.0)
    assert SimulatedBench(changed).seconds("search") == pytest.approx(1.0)


def _with_target(spec: Any, **more: Any) -> Any:
    return formats.from_json(formats.JobSpec, {**formats.to_json(spec), "target": {**spec.target, **more}})


def _rest(stage: Stage) -> tuple[Any, ...]:
    return stage.config, stage.file, stage.cpus, stage.count, stage.device


def test_a_stage_sleeps_and_does_not_compute(job: Any) -> None:
    stage = job(settings={"speed": 50.0})
    wall = time.monotonic()
    cpu = time.process_time()
    stage.bench.learn()
    search.run(stage)
    assert time.monotonic() - wall >= 11 / 50
    assert time.process_time() - cpu < 11 / 50 / 2


def test_half_a_batch_takes_half_the_time(job: Any, slept: list[float]) -> None:
    stage = job(settings={"speed": 1.0})
    device = stage.bench.open(None)
    for number in range(4):
        device.time(Candidate(f"{number}", {"simulated": number}, []), None)
    assert slept[-1] == pytest.approx(3.0 / 2, abs=0.1), "nobody slept, so the fourth share ends after half of the time"


class TestRecordedTimes:
    @pytest.fixture
    def log(self, workspace: Workspace) -> Path:
        failures = {1: Failure("build", "error", "too deep"), 2: Failure("measure", "crash", "too wide")}
        TuningLog(workspace.root / "gpu.jsonl").add(
            Trial(f"{n}", None, [], () if n in failures else (100.0 + n,), failures.get(n), "0009-old", 0, 0.0)
            for n in range(4)
        )
        return workspace.root / "gpu.jsonl"

    def test_they_are_answered_over_and_over(self, log: Path, job: Any) -> None:
        round_of(job, settings={"trials": log.name})
        assert [trial.median_us for trial in job(1).log().trials() if trial.median_us] == [100.0, 103.0, 100.0, 103.0]

    def test_what_failed_then_fails_now_in_the_same_stage(self, log: Path, job: Any) -> None:
        _, built, measured, _ = round_of(job, settings={"trials": log.name})
        assert (built["failed"], measured["failed"]) == (2, 4)
        failures = [trial.failure for trial in job(1).log().trials() if trial.failure]
        assert sorted((item.stage, item.reason) for item in failures) == [
            ("build", "WorkerError: too deep"),
            ("build", "WorkerError: too deep"),
            ("measure", "WorkerError: too wide"),
            ("measure", "WorkerError: too wide"),
        ]


def test_a_candidate_whose_library_is_lost_again_and_again_has_failed(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may remove its own folder, and would be built again without end."""
    search.run(job())
    recorded = SimulatedBench.recorded
    culprit = job().file.candidates[0].hash

    def lose(bench: SimulatedBench, candidate: Candidate) -> Any:
        library = bench.stage.artifacts / candidate.library
        if candidate.hash != culprit or not library.is_file():  # as while it is built
            return recorded(bench, candidate)
        library.unlink()
        raise RuntimeError("cannot open shared object file")

    monkeypatch.setattr(SimulatedBench, "recorded", lose)
    for _ in range(2):
        build.run(job())
        with pytest.raises(DamagedFile, match="was lost while it was measured"):
            measure.run(job())
        assert measure.run(job())["rebuild"]
    build.run(job())
    measure.run(job())
    failures = {trial.hash: trial.failure for trial in job().log().trials() if trial.failure is not None}
    assert list(failures) == [culprit] and "was gone 3 times" in failures[culprit].reason
