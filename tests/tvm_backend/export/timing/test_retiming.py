"""The few that may be the best are timed again in turns; a wrong one never wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import WorkerError
from autotune.storage import formats
from autotune.storage.device_kind import claimed
from autotune.storage.formats import Entry, JobSpec, TaskSpec, Trial
from autotune.storage.tuning_log import TuningLog
from autotune.tvm_backend.export.timing import retiming
from autotune.tvm_backend.export.timing.retiming import RetimedCandidate
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.kernels.cache_state import Context
from autotune.tvm_backend.kernels.time_kernel import open_device
from autotune.tvm_backend.kernels.verify import Reference, compute


def trial(hash: str, *times: float) -> Trial:
    return Trial(hash, [[], []], [], times, None, "j", 0, 0.0)


def all_apply(task: str, item: Trial) -> bool:
    return True


@pytest.fixture
def job(workspace, make_job):
    """Logs times of three tasks, of weights 1, 2 and 3; returns the workspace and the spec."""

    def publish(*times: dict[str, float]):
        spec = formats.read(JobSpec, make_job(tasks=len(times)).spec)
        for task, logged in zip(spec.tasks, times, strict=True):
            log = TuningLog(workspace.tuning_log(spec.target_key, task.hash).records)
            log.add([trial(hash, time) if time else trial(hash) for hash, time in logged.items()])
        return workspace, spec

    return publish


class TestFastestTrials:
    def test_they_are_the_best_that_are_close_and_no_more_than_asked_for(self, job):
        workspace, spec = job({"slow": 131.0, "third": 129.0, "best": 100.0, "second": 105.0, "failed": 0.0}, {})
        fastest = retiming.fastest_trials(workspace, spec, 5, all_apply)
        assert [item.hash for item in fastest[spec.tasks[0].hash]] == ["best", "second", "third"]
        assert spec.tasks[1].hash not in fastest
        (only,) = retiming.fastest_trials(workspace, spec, 1, all_apply)[spec.tasks[0].hash]
        assert only.hash == "best"

    def test_the_next_best_takes_the_place_of_one_that_does_not_apply(self, job):
        workspace, spec = job({"slow": 131.0, "third": 129.0, "best": 100.0, "false": 1.0})
        applies = lambda task, item: item.hash != "false"  # noqa: E731
        chosen = retiming.fastest_trials(workspace, spec, 2, applies)[spec.tasks[0].hash]
        assert [item.hash for item in chosen] == ["best", "third"]

    def test_others_are_looked_at_only_where_a_measurement_near_the_fastest_was_disturbed(self, job):
        workspace, spec = job({"a": 100.0, "b": 101.0}, {"c": 100.0})
        log = TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[1].hash).records)
        log.add([replace(trial("d", 101.0), disturbed="by another process")])
        seen = []
        applies = lambda task, item: not seen.append(item.hash)  # noqa: E731
        retiming.fastest_trials(workspace, spec, 5, applies, disturbed_only=True)
        assert seen == ["a", "c", "d"]

    def test_what_others_claim_is_counted_where_nothing_was_measured_here(self, job):
        workspace, spec = job({"own": 100.0}, {})
        for task in spec.tasks:
            log = TuningLog(workspace.tuning_log(claimed(spec.target_key), task.hash).records)
            log.add([trial("told", 1.0), trial("failed")])
        assert retiming.claims(workspace, spec) == {spec.tasks[1].hash: 1}


class TestContenders:
    def test_a_task_has_as_many_as_its_part_of_the_time_is_worth(self, job):
        many = {f"c{number}": 100.0 + number for number in range(8)}
        few = {name: time / 40 for name, time in many.items()}
        workspace, spec = job(many, few, {"a": 0.1, "b": 0.1})
        fastest = retiming.fastest_trials(workspace, spec, 8, all_apply)
        chosen = retiming.contenders(spec, fastest)
        assert {hash: len(trials) for hash, trials in chosen.items()} == {spec.tasks[0].hash: 8, spec.tasks[1].hash: 5}
        assert chosen[spec.tasks[1].hash] == fastest[spec.tasks[1].hash][:5]

    def test_a_task_with_one_candidate_is_not_timed_again(self, job):
        workspace, spec = job({"alone": 100.0})
        assert retiming.contenders(spec, retiming.fastest_trials(workspace, spec, 3, all_apply)) == {}

    def test_a_task_counts_as_at_the_shapes_where_it_matters_most(self, job):
        close = {"a": 100.0, "b": 101.0}
        workspace, spec = job(close, {"a": 0.1, "b": 0.1})
        entries = Entry("large", spec.inputs, (1, 0)), Entry("small", spec.inputs, (0, 2))
        fastest = retiming.fastest_trials(workspace, spec, 3, all_apply)
        assert list(retiming.contenders(replace(spec, entries=entries), fastest)) == [task.hash for task in spec.tasks]

    def test_of_those_that_were_timed_in_context_only_disturbed_ones_are_timed_again(self, job):
        workspace, spec = job({"a": 100.0, "b": 101.0}, {"c": 100.0, "d": 101.0, "e": 102.0})
        quiet = retiming.contenders(spec, retiming.fastest_trials(workspace, spec, 3, all_apply))
        second = spec.tasks[1].hash
        best, slower, slowest = quiet[second]
        doubted = replace(slowest, disturbed="by another process")
        assert retiming.disturbed(quiet) == {}
        assert retiming.disturbed(quiet | {second: [best, slower, doubted]}) == {second: [best, doubted]}

    def test_one_that_is_the_fastest_though_it_was_disturbed_is_not_timed_again(self, job):
        workspace, spec = job({"a": 100.0, "b": 101.0})
        ((best, other),) = retiming.fastest_trials(workspace, spec, 3, all_apply).values()
        assert retiming.disturbed({"task": [replace(best, disturbed="by another process"), other]}) == {}


def test_a_schedule_that_does_not_apply_is_set_aside_with_the_reason(workspace, make_job, as_program):
    from tvm import te

    from autotune.tvm_backend.search.tasks import task_hash, write_program

    a = te.placeholder((64,), name="a")
    program = as_program(a, te.compute((64,), lambda i: a[i] * 2.0, name="b"))
    paths = make_job(tasks=(TaskSpec("double", task_hash(program), 1, "64", 0.1, True),))
    spec = replace(formats.read(JobSpec, paths.spec), target={"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    paths.tasks.mkdir()
    write_program(paths.task(0), program)
    applies = retiming.Replayer(paths, spec)
    absent = [[["GetSBlock", [], ["absent", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []]
    strange = replace(trial("strange", 1.0), trace=absent)
    assert applies(spec.tasks[0].hash, trial("sound", 2.0)) and not applies(spec.tasks[0].hash, strange)
    ((aside,),) = applies.set_aside.values()
    assert (aside.hash, aside.best_us) == ("strange", 1.0) and "does not apply" in aside.reason


class Stopwatch:
    """Each library's times, one for each turn; single runs for a CPU, repeats for others."""

    def __init__(self, on_cpu, **times):
        self.times = {name: list(values) for name, values in times.items()}
        self.asked = []
        self.on_cpu = on_cpu

    def time(self, library, args, best_us, on_cpu=False):
        assert self.on_cpu is on_cpu
        self.asked.append((library.stem, self.context))
        return [self.times[library.stem].pop(0)]

    def time_runs(self, library, args, runs):
        return self.time(library, args, None, on_cpu=True)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_candidates_are_timed_in_turns_and_the_first_turn_does_not_count(on_cpu):
    candidates = [RetimedCandidate(trial(name), Path(f"{name}.so")) for name in "ab"]
    slow_then_fast = [900.0, *[50.0] * retiming.TURNS]
    watch = Stopwatch(on_cpu, a=[1.0, *[60.0] * retiming.TURNS], b=slow_then_fast)
    context = Context("L3", (1,)) if on_cpu else None
    retiming.time_in_turns({"task": candidates}, watch, {"task": context} if on_cpu else {})
    assert watch.asked == [("a", context), ("b", context)] * (retiming.TURNS + 1)
    assert [item.median_us for item in candidates] == [60.0, 50.0]
    assert retiming.fastest_correct(candidates, None, None) is candidates[1]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory, target, as_program):
    """Libraries that double, and one that triples; and the reference, which doubles."""
    from tvm import te

    folder = tmp_path_factory.mktemp("kernels")

    def program(factor):
        a = te.placeholder((64,), name="a")
        return as_program(a, te.compute((64,), lambda i: a[i] * factor, name="b"))

    for name, factor in (("logged", 2.0), ("right", 2.0), ("wrong", 3.0)):
        build_library(program(factor), target, folder / f"{name}.so")
    return folder, compute(program(2.0), {"kind": "llvm", "mcpu": "x86-64-v3"})


def built(folder, **medians):
    return [RetimedCandidate(trial(name), folder / f"{name}.so", [median]) for name, median in medians.items()]


def test_a_wrong_candidate_is_not_chosen_however_fast(kernels):
    folder, reference = kernels
    chosen = retiming.fastest_correct(
        built(folder, logged=60.0, wrong=10.0, right=50.0), reference, open_device("llvm")
    )
    assert chosen.trial.hash == "right"


def test_the_best_logged_one_is_what_is_left(kernels):
    folder, reference = kernels
    chosen = retiming.fastest_correct(built(folder, logged=60.0, wrong=10.0), reference, open_device("llvm"))
    assert chosen.trial.hash == "logged"


def test_a_task_that_cannot_be_checked_goes_to_the_fastest(kernels):
    folder, _ = kernels
    unknown = Reference(outputs={0: np.zeros(1)}, problem="timeout")
    assert retiming.fastest_correct(built(folder, logged=60.0, wrong=10.0), unknown, None).trial.hash == "wrong"


@pytest.mark.parametrize("children", [0, 2])
def test_candidates_of_all_tasks_are_built_with_the_programs_of_their_tasks(children, tmp_path, monkeypatch):
    def build_candidate(trial, program, target, path):
        path.write_text(f"{trial.hash} {program} {target}")

    monkeypatch.setattr(retiming, "build_candidate", build_candidate)
    items = [("one", trial("a")), ("one", trial("b")), ("two", trial("a"))]
    assert len(list(retiming.build(items, str.upper, "cpu", tmp_path, children))) == 3
    by_task = retiming.candidates(items, tmp_path)
    texts = {hash: [item.library.read_text() for item in candidates] for hash, candidates in by_task.items()}
    assert texts == {"one": ["a ONE cpu", "b ONE cpu"], "two": ["a TWO cpu"]}


def test_a_candidate_that_cannot_be_built_again_is_named(tmp_path, monkeypatch):
    def build_candidate(*_):
        raise ValueError("no such loop")

    monkeypatch.setattr(retiming, "build_candidate", build_candidate)
    with pytest.raises(WorkerError, match="^candidate b cannot be built again: ValueError: no such loop$"):
        list(retiming.build([("one", trial("b"))], str.upper, "cpu", tmp_path, 1))
