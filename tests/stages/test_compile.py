"""When a whole model is compiled to be timed: its tasks promise the latency to stop at, or have become faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.submit.publish import Submission, publish
from autotune.config import Config
from autotune.devices import Simulated
from autotune.network_plan.plan import Plan
from autotune.options import TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.settings import ClusterSettings, ExportSettings, JobSettings
from autotune.stages import compile, confirm
from autotune.stages.on_simulated import SimulatedBench
from autotune.stages.stage import Stage
from autotune.storage import confirmation, formats
from autotune.storage.confirmation import Confirmation, EntryTimes, read_confirmation
from autotune.storage.formats import Entry, StageFile, TaskSpec, Trial
from autotune.storage.job_files import read_spec
from autotune.storage.paths import Workspace
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export import ready_library
from autotune.tvm_backend.export.ready_library import ModelFacts

from .conftest import Make, kinds, stage_of


def test_a_latency_is_promised_when_every_task_has_a_time(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    spec = read_spec(paths)
    know(0, 1000.0)
    assert not compile.is_due_at_once(workspace, paths, spec, Config())
    know(1, 2000.0)
    assert not compile.is_due_at_once(workspace, paths, spec, Config()), "5 ms"
    know(1, 1400.0)
    assert compile.is_due_at_once(workspace, paths, spec, Config()), "3.8 ms"
    assert not compile.is_due_at_once(workspace, paths, replace(spec, stop_at_ms=None), Config())


@pytest.mark.parametrize(("sum_ms", "promised"), [(4.9, True), (4.99, False)])
def test_a_promise_is_a_little_better_than_what_is_wanted(
    workspace: Workspace, job: Any, know: Any, sum_ms: float, promised: bool
) -> None:
    paths = job(5.0)
    know(0, 1000.0 * (sum_ms - 2))
    know(1, 1000.0)
    assert compile.is_due_at_once(workspace, paths, read_spec(paths), Config()) == promised


def test_a_model_that_could_not_be_timed_is_not_timed_again_unless_its_job_is_retried(
    workspace: Workspace, job: Any, know: Any
) -> None:
    paths = job(8.0)
    spec = read_spec(paths)
    know(0, 1000.0)
    know(1, 1000.0)
    failed = confirmation.give_up(paths, "confirm: crashed: no library")
    assert not failed.meets(8.0) and not compile.is_due_at_once(workspace, paths, spec, Config())
    confirmation.forget_failure(paths)
    assert compile.is_due_at_once(workspace, paths, spec, Config())


def test_a_stage_that_was_overtaken_compiles_nothing(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    stage = stage_of(workspace, paths)
    other = Confirmation((5.0,), 3.8, time.time())
    formats.write(paths.confirmed, other)
    assert compile.run(stage) == {"compiled": False}
    assert read_confirmation(paths) == other
    assert (0, 4, "search") in kinds(paths)


def test_a_model_is_compiled_with_what_its_tasks_took(workspace: Workspace, job: Any, know: Any) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    stage = stage_of(workspace, paths)
    assert compile.run(stage) == {"compiled": True}
    assert kinds(paths) == [(0, 3, "confirm"), (1, 0, "search")]
    compiled = compile.compiled(stage)
    assert compiled is not None and compiled.tasks_ms == (3.8,)
    compiled.library.write_bytes(b"another user's")
    assert compile.compiled(stage) is None


@pytest.mark.parametrize(
    ("ago_s", "took_s", "again"),
    [(25.0, 1.0, False), (35.0, 1.0, True), (45.0, 6.0, False), (50.0, 6.0, True)],
)
def test_a_latency_that_was_missed_long_ago_is_confirmed_again(
    workspace: Workspace, job: Any, know: Any, ago_s: float, took_s: float, again: bool
) -> None:
    paths = job(4.0)
    know(0, 1000.0)
    know(1, 1400.0)
    formats.write(paths.confirmed, Confirmation((9.0,), 3.8, time.time() - ago_s, took_s=took_s))
    assert compile.is_due_at_once(workspace, paths, read_spec(paths), Config()) == again


@pytest.mark.parametrize(("stop_at_ms", "kind"), [(1.0, "search"), (9.0, "compile"), (None, "search")])
def test_a_submission_looks_at_what_is_known_first(
    workspace: Workspace, know: Any, stop_at_ms: float | None, kind: str
) -> None:
    know(0, 1000.0)
    task = TaskSpec("conv", "0" * 16, 2, "1x8", 0.5, True)
    preview = ImportAnswer({"kind": "simulated"}, "simulated-test", (), (task,), (0,))
    wanted = Submission(Path("net"), TuningOptions(target="simulated", trials=8, stop_at_ms=stop_at_ms))
    publish(workspace, Config(), wanted, preview)
    (paths,) = workspace.job_list()
    assert kinds(paths) == [(0, 0, kind)]


@pytest.mark.parametrize(("stop_at_ms", "kind"), [(2.9, "search"), (3.1, "compile")])
def test_of_several_sets_of_shapes_the_slowest_has_to_promise_it(
    workspace: Workspace, know: Any, stop_at_ms: float, kind: str
) -> None:
    know(0, 1000.0)
    know(1, 500.0)
    tasks = tuple(TaskSpec("conv", f"{index:016x}", 4, "1x8", 0.5, True) for index in range(2))
    entries = (Entry("small", (), (1, 0)), Entry("large", (), (2, 2)), Entry("odd", (), (0, 0)))
    preview = ImportAnswer({"kind": "simulated"}, "simulated-test", (), tasks, (0, 0), entries=entries)
    options = TuningOptions(target="simulated", trials=8, stop_at_ms=stop_at_ms)
    publish(workspace, Config(), Submission(Path("net"), options), preview)
    (paths,) = workspace.job_list()
    assert (0, 0, kind) in kinds(paths)


class TestWithoutALatencyToStopAt:
    """The whole model is timed so that `status` can say how long it takes."""

    @pytest.fixture
    def tells_more(
        self, workspace: Workspace, make_job: Make, know: Any, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., bool]:
        """Whether it is worth a measurement, for a job of two tasks with weights of 1 and 2 on a device that exists."""
        monkeypatch.setattr(Simulated, "runs_models", True)
        paths = make_job(target="simulated", trials=64)
        stage = stage_of(workspace, paths)

        def tells_more(*best_us: float, last: Confirmation | None = None, **changes: Any) -> bool:
            for task, time_us in enumerate(best_us):
                know(task, time_us)
            if last is not None:
                formats.write(paths.confirmed, last)
            return compile.is_due(replace(stage, **changes))

        return tells_more

    def confirmed(self, ago_s: float = 0.0) -> Confirmation:
        return replace(Confirmation.of([EntryTimes("main", (4.0,), 3.0)], 1.0), at=time.time() - ago_s)

    def test_it_is_timed_once_every_task_has_a_time(self, tells_more: Any) -> None:
        assert not tells_more(1000.0)
        assert tells_more(1000.0, 1000.0)
        assert not tells_more(last=self.confirmed())

    @pytest.mark.parametrize(
        ("task", "kind", "enough"),
        [(0, "confirm", True), (1, "confirm", True), (0, "compile", True), (1, "compile", False)],
    )
    def test_one_measurement_at_a_time_is_enough(
        self, tells_more: Any, workspace: Workspace, task: int, kind: Any, enough: bool
    ) -> None:
        assert tells_more(1000.0, 1000.0)
        (paths,) = workspace.job_list()
        formats.write(paths.stage(task, 2), StageFile(task, 2, kind))
        assert tells_more() is not enough, "of two that compile, the first goes on"

    def test_it_is_timed_again_after_a_while_when_its_tasks_take_a_fifth_less(self, tells_more: Any) -> None:
        assert not tells_more(500.0, 1000.0, last=self.confirmed(ago_s=60.0)), "2.5 ms of 3"
        assert tells_more(400.0, 1000.0)
        assert not tells_more(last=self.confirmed(ago_s=20.0))

    @pytest.mark.parametrize(("best_us", "timed"), [(400.0, True), (900.0, True), (1000.0, False)])
    def test_when_the_budget_is_used_it_is_timed_at_once_if_its_tasks_have_become_faster(
        self, tells_more: Any, workspace: Workspace, best_us: float, timed: bool
    ) -> None:
        assert not tells_more(best_us, 1000.0, last=self.confirmed())
        log = TuningLog(workspace.tuning_log("simulated-test", f"{1:016x}").records)
        log.add([Trial(f"more-{number}", [], [], (9e3,), None, "0009-other", 0, 0.0) for number in range(62)])
        assert tells_more() is timed

    def test_it_is_not_timed_where_it_cannot_be_or_shall_not(self, tells_more: Any) -> None:
        assert not tells_more(1000.0, 1000.0, config=Config(job=JobSettings(whole_model=False)))
        assert not tells_more(config=Config(cluster=ClusterSettings(engine="ray")))
        failed = Confirmation((), 0.0, time.time(), "confirm: crashed")
        assert not tells_more(last=failed)

    def test_a_device_that_runs_no_models_tells_nothing(self, workspace: Workspace, make_job: Make, know: Any) -> None:
        know(0, 1000.0)
        know(1, 1000.0)
        assert not compile.is_due(stage_of(workspace, make_job(target="simulated")))


class TestALibraryForAnExport:
    """Of a job whose trials have been made, the library of the best of them is compiled and kept."""

    @pytest.fixture
    def stage(
        self, workspace: Workspace, make_job: Make, know: Any, monkeypatch: pytest.MonkeyPatch, simulate: Any
    ) -> Stage:
        """A stage of a job that has made its two trials, and whose whole model was timed with them."""
        simulate(speed=1000.0)
        monkeypatch.setenv("XDG_STATE_HOME", str(workspace.root / "state"))
        monkeypatch.setattr(Simulated, "runs_models", True)
        monkeypatch.setattr(Simulated, "is_local_cpu", True)
        monkeypatch.setattr(SimulatedBench, "compile_model", compile_with_note)
        paths = make_job(target="simulated", trials=2)
        know(0, 1000.0)
        know(1, 1000.0)
        stage = stage_of(workspace, paths)
        formats.write(paths.confirmed, Confirmation.of([EntryTimes("main", (4.0,), 3.0)], 1.0))
        return stage

    def test_is_made_once_and_the_model_is_not_timed_for_it(self, stage: Stage) -> None:
        assert compile.is_due(stage)
        assert compile.run(stage) == {"compiled": False, "ready": True}
        assert stage.paths.ready_library.read_bytes() == b"a library"
        assert (0, 4, "search") in kinds(stage.paths) and not compile.is_due(stage)

    def test_is_made_again_when_a_task_has_become_faster(self, stage: Stage, know: Any) -> None:
        compile.run(stage)
        know(1, 995.0)
        assert compile.is_due(stage)

    def test_is_that_of_a_confirmation(self, stage: Stage) -> None:
        stage.paths.confirmed.unlink()
        assert compile.run(stage) == {"compiled": True}
        confirm.run(replace(stage, file=formats.read(StageFile, stage.paths.stage(0, 3))))
        assert stage.paths.ready_library.exists() and not compile.is_due(stage)

    def test_is_made_where_a_task_has_no_time_which_is_not_worth_a_measurement(
        self, stage: Stage, workspace: Workspace, know: Any
    ) -> None:
        for file in workspace.tuning_log("simulated-test", f"{1:016x}").records.parent.glob(f"{1:016x}*"):
            file.unlink()
        assert not compile.is_due(stage_of(workspace, stage.paths)), "a trial is left"
        know(0, 1100.0)
        assert compile.run(stage_of(workspace, stage.paths)) == {"compiled": False, "ready": True}

    def test_is_not_made_where_nothing_shall_be_kept(self, stage: Stage) -> None:
        assert not compile.is_due(replace(stage, config=Config(export=ExportSettings(kept_mb=0))))
        assert not compile.is_due(replace(stage, config=Config(job=JobSettings(whole_model=False))))


def compile_with_note(bench: SimulatedBench, library: Path, plan: Plan | None = None) -> None:
    """Stand in for a compiler: write a library, and beside it what an export has to know of it."""
    stage = bench.stage
    library.write_bytes(b"a library")
    digest = ready_library.made_from(stage.workspace, stage.paths, stage.spec)
    ready_library.note(library, digest, ModelFacts(0, {}, None))
