"""After the last choice of a plan the whole model decides: the chosen plan is kept if it is faster than that before.

The tests of decisions say how long libraries take, and compile none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.errors import WorkerCrashed
from autotune.plans.exploration import Choice
from autotune.plans.plan import NOTHING, Block, Plan
from autotune.settings import JobSettings
from autotune.stages import choose, compile, confirm
from autotune.stages.on_cpu import CpuBench
from autotune.stages.stage import Stage
from autotune.storage import confirmation, formats
from autotune.storage.confirmation import EntryTimes, read_confirmation
from autotune.storage.exploration_files import read_choice
from autotune.storage.formats import StageFile
from autotune.storage.job_files import read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison, RuntimeTimes
from autotune.tvm_backend.load import load_for_tuning

from .conftest import add_trials, choosing, of_each_task, winograd_is_fast


def next_stage(stage: Stage) -> Stage:
    """Return what the round of a stage goes on with, read from its files as a worker would."""
    file = formats.read(StageFile, stage.paths.stage(stage.file.task, stage.file.round))
    return Stage(stage.workspace, stage.paths, read_spec(stage.paths), stage.config, file, stage.cpus)


def choice_of(paths: JobPaths) -> Choice:
    choice = read_choice(paths, read_spec(paths))
    assert choice is not None
    return choice


BESIDE = Plan(blocks=(Block(operators=("conv2d_1",)), Block(operators=("conv2d_2",), beside=True)))


def with_beside(stage: Stage) -> Choice:
    """Give a choice a plan with kernels beside each other, which this network in a chain has none of."""
    choice = replace(choice_of(stage.paths), beside=BESIDE)
    formats.write(stage.paths.choice, choice)
    return choice


@pytest.fixture(scope="module")
def chosen_once(submitted_exploring: JobPaths, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a job whose last choice was made: two convolutions are computed by Winograd's algorithm."""
    load_for_tuning("llvm")
    workspace = Workspace(tmp_path_factory.mktemp("chosen"))
    paths = JobPaths(workspace.jobs / submitted_exploring.folder.name)
    shutil.copytree(submitted_exploring.folder, paths.folder)
    add_trials(workspace, paths, winograd_is_fast, of_each_task(paths, 0.6))
    choose.run(choosing(workspace, paths))
    return workspace


@pytest.fixture
def chosen(workspace: Workspace, chosen_once: Workspace) -> Stage:
    """A copy of that choice, after it has run."""
    shutil.copytree(chosen_once.root, workspace.root, dirs_exist_ok=True)
    (paths,) = workspace.job_list()
    task = read_spec(paths).tunable[0]
    return Stage(workspace, paths, read_spec(paths), Config(), StageFile(task, 3, "choose"), (0,))


@dataclass
class Benches:
    """What the benches of CPUs were asked, which compile and time nothing.

    Attributes:
        ratio: What part of the time of the plan as submitted the chosen one takes.
        beside: The same of the chosen one with small kernels beside each other.
        compiled: The names of the libraries and the plans that they were compiled by.
        comparisons: How often libraries were compared.
        timed: The names of the libraries that were timed alone, and the sums of the times of their tasks.
    """

    ratio: float
    beside: float
    compiled: list[tuple[str, Plan | None]]
    comparisons: int
    timed: list[tuple[str, float]]


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> Benches:
    asked = Benches(0.9, 2.0, [], 0, [])

    def compile_model(bench: CpuBench, library: Path, plan: Plan | None = None) -> None:
        asked.compiled.append((library.name, plan))
        library.write_text(library.name)

    def compare_models(bench: CpuBench, libraries: Sequence[Path], reference: Path) -> list[list[float]]:
        asked.comparisons += 1
        shares = {"model.so": asked.ratio, "beside.so": asked.beside}
        return [[shares[file.name] - 0.1, shares[file.name], shares[file.name] + 0.001] for file in libraries]

    def time_model(bench: CpuBench, library: Path, sums: Any, *_: Any, **__: Any) -> list[EntryTimes]:
        asked.timed.append((library.name, sums[0]))
        return [EntryTimes("main", (2.0,), sums[0], "onnxruntime", 1.5)]

    monkeypatch.setattr(CpuBench, "compile_model", compile_model)
    monkeypatch.setattr(CpuBench, "compare_models", compare_models)
    monkeypatch.setattr(CpuBench, "time_model", time_model)
    return asked


@pytest.mark.slow
def test_the_plan_that_is_faster_in_libraries_of_the_whole_model_is_kept(chosen: Stage) -> None:
    before = choice_of(chosen.paths)
    compile.run(next_stage(chosen))
    assert {path.name for path in chosen.artifacts.glob("*.so")} == {"model.so", "submitted.so"}
    facts = confirm.run(next_stage(chosen))
    choice = choice_of(chosen.paths)
    assert choice.ratio is not None and 0.1 < choice.ratio < 10.0
    assert (facts["ratio"], facts["returned"]) == (choice.ratio, choice.ratio > 0.99)
    kept = (NOTHING, before.before) if facts["returned"] else (before.plan, before.weights)
    assert (choice.plan, choice.weights) == kept
    spec = read_spec(chosen.paths)
    assert JobModel.read(chosen.paths, spec).prepared is not None
    confirmed = read_confirmation(chosen.paths)
    sum_us = sum((5 if "winograd" in task.name else 10) * task.weight for task in spec.tasks if task.tunable)
    assert confirmed is not None and confirmed.estimate_ms == pytest.approx(sum_us / 1e3)


def test_a_share_is_what_each_turn_of_fresh_processes_says(chosen: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def time(comparison: RuntimeComparison, timings: int, longest_s: float) -> dict[str, RuntimeTimes]:
        asked.append((comparison._runtimes, [array.shape for array in comparison._arrays], comparison._threads))
        return {"model.so": RuntimeTimes([(3.0,), (4.0,)]), "submitted.so": RuntimeTimes([(6.0,), (5.0,)])}

    monkeypatch.setattr(RuntimeComparison, "time", time)
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.setenv(name, "")  # a stage sets them, in a process of its own
    model, submitted = (chosen.artifacts / name for name in ("model.so", "submitted.so"))
    assert chosen.bench.compare_models([model], submitted) == [[0.5, 0.8]]
    assert asked == [({file.name: Runtime("library", file) for file in (model, submitted)}, [(1, 16, 8, 8)], 1)]


@pytest.mark.parametrize(("ratio", "returned"), [(0.99, False), (0.991, True)])
def test_the_chosen_plan_is_kept_if_it_is_faster_by_a_hundredth(
    chosen: Stage, benches: Benches, ratio: float, returned: bool
) -> None:
    benches.ratio = ratio
    before = choice_of(chosen.paths)
    compile.run(next_stage(chosen))
    assert benches.compiled == [("model.so", None), ("submitted.so", NOTHING)]
    facts = confirm.run(next_stage(chosen))
    assert (facts["ratio"], facts["returned"]) == (ratio, returned)
    now = choice_of(chosen.paths)
    assert now == replace(
        before,
        ratio=ratio,
        returned=returned,
        plan=NOTHING if returned else before.plan,
        weights=before.before if returned else before.weights,
    )
    assert benches.timed == ([("submitted.so", 0.02)] if returned else [("model.so", 0.01)])
    file = formats.read(StageFile, chosen.paths.stage(chosen.file.task, 4))
    assert file.kind == "search" and not compile.is_due(next_stage(replace(chosen, file=file)))


@pytest.mark.parametrize(
    ("ratio", "beside", "kept"),
    [(0.9, 0.88, "beside"), (0.9, 0.895, "model"), (1.2, 0.98, "beside"), (1.2, 0.995, "submitted")],
)
def test_small_kernels_run_beside_each_other_if_that_is_faster_by_another_hundredth(
    chosen: Stage, benches: Benches, ratio: float, beside: float, kept: str
) -> None:
    benches.ratio, benches.beside = ratio, beside
    before = with_beside(chosen)
    compile.run(next_stage(chosen))
    assert benches.compiled == [("model.so", None), ("submitted.so", NOTHING), ("beside.so", BESIDE)]
    confirm.run(next_stage(chosen))
    assert [name for name, _ in benches.timed] == [f"{kept}.so"]
    plans = {"beside": BESIDE, "model": before.plan, "submitted": NOTHING}
    assert choice_of(chosen.paths).plan == plans[kept]


@pytest.mark.parametrize(("beside", "plan"), [(0.9, BESIDE), (0.995, NOTHING)])
def test_a_plan_as_submitted_is_compared_with_its_small_kernels_beside_each_other(
    chosen: Stage, benches: Benches, beside: float, plan: Plan
) -> None:
    benches.beside = beside
    choice = with_beside(chosen)
    formats.write(chosen.paths.choice, replace(choice, plan=NOTHING, weights=choice.before))
    compile.run(next_stage(chosen))
    assert benches.compiled == [("model.so", None), ("beside.so", BESIDE)]
    assert confirm.run(next_stage(chosen))["ratio"] == beside
    assert choice_of(chosen.paths).plan == plan
    assert [name for name, _ in benches.timed] == ["model.so" if plan is NOTHING else "beside.so"]


def test_a_choice_that_was_killed_before_the_comparison_goes_on_with_it(workspace: Workspace, chosen: Stage) -> None:
    again = choosing(workspace, chosen.paths)
    assert choose.run(again) == {"skipped": True}
    assert next_stage(again).file.kind == "compile"


def test_a_decision_that_was_written_is_not_made_again(
    chosen: Stage, benches: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    benches.ratio = 1.1
    compile.run(next_stage(chosen))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CpuBench, "time_model", killed)
        confirm.run(next_stage(chosen))
    assert confirm.run(next_stage(chosen))["returned"]
    assert benches.comparisons == 1 and benches.timed == [("submitted.so", 0.02)]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.so", Path.unlink),
        ("submitted.so", Path.unlink),
        ("submitted.so", lambda path: path.write_text("another")),
        ("model.json", lambda path: path.write_text("another")),
    ],
)
def test_a_library_that_is_lost_or_damaged_is_compiled_again(
    chosen: Stage, benches: Benches, name: str, damage: Callable[[Path], object]
) -> None:
    compile.run(next_stage(chosen))
    damage(chosen.artifacts / name)
    assert confirm.run(next_stage(chosen)) == {"recompile": True}
    compile.run(next_stage(chosen))
    assert confirm.run(next_stage(chosen))["ratio"] == benches.ratio


def test_where_the_choice_is_lost_meanwhile_the_plan_as_submitted_is_timed(chosen: Stage, benches: Benches) -> None:
    compile.run(next_stage(chosen))
    chosen.paths.choice.write_text("{")
    assert "ratio" not in confirm.run(next_stage(chosen))
    assert benches.timed == [("submitted.so", 0.02)] and not benches.comparisons


def test_models_that_cannot_be_compared_leave_the_choice_as_it_is(
    chosen: Stage, benches: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashed(*_: Any) -> None:
        raise WorkerCrashed("library died")

    before = choice_of(chosen.paths)
    monkeypatch.setattr(CpuBench, "compare_models", crashed)
    compile.run(next_stage(chosen))
    with pytest.raises(WorkerCrashed):
        confirm.run(next_stage(chosen))
    confirmation.give_up(chosen.paths, "confirm: crashed")
    assert choice_of(chosen.paths) == before
    assert not compile.is_due(next_stage(chosen))


class TestNothingIsCompared:
    def test_where_whole_models_are_not_timed(self, chosen: Stage) -> None:
        assert compile.is_due(next_stage(chosen))
        assert not compile.is_due(replace(next_stage(chosen), config=Config(job=JobSettings(whole_model=False))))

    def test_before_the_last_choice(self, chosen: Stage, benches: Benches) -> None:
        formats.write(chosen.paths.choice, replace(choice_of(chosen.paths), last=False))
        compile.run(next_stage(chosen))
        assert benches.compiled == [("model.so", None)]

    def test_where_the_plan_as_submitted_was_chosen(self, chosen: Stage, benches: Benches) -> None:
        choice = choice_of(chosen.paths)
        formats.write(chosen.paths.choice, replace(choice, plan=NOTHING, weights=choice.before))
        compile.run(next_stage(chosen))
        assert benches.compiled == [("model.so", None)]
        assert "ratio" not in confirm.run(next_stage(chosen))

    def test_where_a_task_of_the_plan_as_submitted_has_no_time(self, chosen: Stage, benches: Benches) -> None:
        spec = read_spec(chosen.paths)
        (task, *_) = [
            index
            for index, weight in enumerate(choice_of(chosen.paths).before)
            if weight and not spec.tasks[index].weight and spec.tasks[index].tunable
        ]
        chosen.workspace.tuning_log(spec.target_key, spec.tasks[task].hash).records.unlink()
        compile.run(next_stage(chosen))
        assert benches.compiled == [("model.so", None)]
