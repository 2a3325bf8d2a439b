"""The search stage runs the job's strategy on a real task, from the log alone, and proposes nothing twice."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from autotune import strategies
from autotune.config import Config
from autotune.errors import WorkerError
from autotune.processes.messages import RunStage
from autotune.stages import search
from autotune.stages.stage import Stage
from autotune.storage import formats
from autotune.storage.formats import JobSpec, StageFile, TaskSpec, Trial
from autotune.storage.paths import JobPaths
from autotune.storage.tuning_log import TuningLog

from ..small_networks import tasks_of

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}


@pytest.fixture(scope="module")
def pooling(tmp_path_factory):
    """The max pooling of a tiny network: 28 configurations."""
    tasks = tasks_of("tiny_cnn", tmp_path_factory.mktemp("model"), TARGET)
    return next(task.program for task in tasks if task.spec.name.startswith("max_pool"))


@pytest.fixture
def job(make_job, pooling):
    """Publishes a job with that one task."""
    from autotune.tvm_backend.search.tasks import task_hash, write_program

    def publish(strategy: str, sampler: str) -> JobPaths:
        task = TaskSpec("pool", task_hash(pooling), 1, "1x8", 0.1, True)
        paths = make_job(tasks=(task,), strategy=strategy, sampler=sampler)
        formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), target=TARGET))
        paths.tasks.mkdir()
        write_program(paths.task(0), pooling)
        return paths

    return publish


def searched(workspace, paths, round=0, count=6, config=Config()):  # noqa: B008
    """Run the search of a round; what it says, and the hashes that it published."""
    formats.write(paths.stage(0, round), StageFile(0, round, "search"))
    stage = Stage.load(workspace, config, RunStage(0, paths.folder.name, 0, round, "search", (0,), 0.0, count=count))
    told = search.run(stage)
    return told, list(formats.read(StageFile, paths.stage(0, round)).candidates)


def log(workspace, paths, candidates, task=0):
    spec = formats.read(JobSpec, paths.spec)
    trials = [
        Trial(item.hash, item.trace, item.args, (100.0 + at,), None, "j", 0, 0.0) for at, item in enumerate(candidates)
    ]
    TuningLog(workspace.tuning_log(spec.target_key, spec.tasks[task].hash).records).add(trials)


@pytest.mark.parametrize(
    ("strategy", "sampler"),
    [
        ("beam", "greedy"),
        ("evolutionary", "adaptive"),
        pytest.param("evolutionary", "greedy", marks=pytest.mark.slow),
        pytest.param("chameleon", "adaptive", marks=pytest.mark.slow),
    ],
)
def test_a_search_proposes_what_is_neither_measured_nor_on_its_way_and_the_same_after_a_kill(
    workspace, job, strategy, sampler
):
    paths = job(strategy, sampler)
    told, first = searched(workspace, paths)
    assert told["proposed"] == len(first) > 0
    assert set(told) == {"proposed", "steps", "replayed", "invalid", "repeated"}
    _, ahead = searched(workspace, paths, round=1)
    log(workspace, paths, first)
    once, again = (searched(workspace, paths, round=2)[1] for _ in range(2))
    assert once == again and once
    hashes = [item.hash for item in (*first, *ahead, *once)]
    assert len(hashes) == len(set(hashes))


def test_a_space_is_exhausted_at_some_time(workspace, job):
    paths = job("genetic", "greedy")
    sizes = []
    for round in range(8):
        told, candidates = searched(workspace, paths, round=round)
        sizes.append(told["proposed"])
        if not told["proposed"]:
            break
        log(workspace, paths, candidates)
        paths.stage(0, round).unlink()
    assert sizes[-1] == 0
    assert 22 <= sum(sizes) <= 29  # with the default schedule, which the space has not


def test_what_has_no_configuration_is_known_by_its_hash(workspace, job):
    """Trials and candidates of schedules that this space has not, as another version of TVM may have made them."""
    paths = job("evolutionary", "greedy")
    strange = [replace(item, trace=[[["Unheard", [], [], []]], []]) for item in searched(workspace, paths, count=12)[1]]
    log(workspace, paths, strange[:6])
    formats.write(paths.stage(0, 0), StageFile(0, 0, "build", tuple(strange[6:])))
    formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), strategy="genetic"))
    told, candidates = searched(workspace, paths, round=1, count=28)
    assert told["repeated"] > 6  # of the measured and of those on their way
    assert candidates and not {item.hash for item in candidates} & {item.hash for item in strange}


@pytest.mark.parametrize(("shape", "taken_over"), [("1x8", True), ("1x9", False)])
def test_what_did_best_on_a_task_of_the_same_shapes_is_tried_first(workspace, job, shape, taken_over):
    paths = job("random", "greedy")
    *others, best, _default = searched(workspace, paths, count=12)[1]
    spec = formats.read(JobSpec, paths.spec)
    similar = TaskSpec("pool_relu", "0123456789abcdef", 1, shape, 0.1, True)
    formats.write(paths.spec, replace(spec, tasks=(*spec.tasks, similar), known_at_submit=(0, 0)))
    log(workspace, paths, [best, *others], task=1)
    paths.stage(0, 0).unlink()  # that search never was
    first = searched(workspace, paths, round=1, count=4)[1][0]
    assert (first.hash == best.hash) is taken_over


def test_the_default_does_for_a_space_that_strategies_do_not_know_and_a_chosen_one_says_so(workspace, job):
    def unknown(*_):
        raise WorkerError("SampleNew is no knob that strategies know")

    paths = job(strategies.DEFAULT, "greedy")
    with patch("autotune.tvm_backend.search.knobs._values", unknown):
        assert searched(workspace, paths)[0]["proposed"] > 0
        formats.write(paths.spec, replace(formats.read(JobSpec, paths.spec), strategy="annealing"))
        with pytest.raises(WorkerError, match="SampleNew"):
            searched(workspace, paths, round=1)


def test_tvms_search_needs_no_knobs_and_proposes_nothing_twice(workspace, job):
    paths = job("evolutionary", "greedy")
    with patch("autotune.tvm_backend.search.knobs._values", side_effect=WorkerError("SampleNew")):
        first, second = (searched(workspace, paths, round=round)[1] for round in range(2))
    hashes = [item.hash for item in (*first, *second)]
    assert len(first) == 6 and len(second) > 0
    assert len(set(hashes)) == len(hashes)


def test_the_first_batch_is_searched_with_the_prior_unless_it_is_switched_off(workspace, job):
    paths = job("evolutionary", "greedy")
    assert searched(workspace, paths)[0]["steps"] > 0
    without = replace(Config(), search=replace(Config().search, prior=False))
    assert searched(workspace, paths, config=without)[0]["steps"] == 0
