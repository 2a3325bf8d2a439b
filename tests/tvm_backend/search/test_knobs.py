"""The knob view on real tasks: a convolution, a dense layer, a pooling, a mean."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.storage.formats import Trial
from autotune.tvm_backend.search.knobs import Knobs

from ...small_networks import tasks_of

TASKS = ("conv2d", "matmul", "max_pool2d", "mean")
QUICK = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    description = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    tasks = tasks_of("tiny_cnn", tmp_path_factory.mktemp("model"), description)
    return {kind: next(task.program for task in tasks if task.spec.name.startswith(kind)) for kind in TASKS}


@pytest.fixture(scope="module")
def views(programs, target):
    return {kind: Knobs(program, target) for kind, program in programs.items()}


@pytest.mark.parametrize("kind", TASKS)
class TestRoundTrip:
    @QUICK
    @given(seed=st.integers(0, 2**32 - 1))
    def test_a_configuration_comes_back_from_its_trace_and_gives_the_same_program(self, views, target, kind, seed):
        from autotune.tvm_backend.search.design_space import replay
        from autotune.tvm_backend.search.propose import Validator
        from autotune.tvm_backend.search.tasks import program_hash

        knobs = views[kind]
        asked = [tuple(row) for row in knobs.space.sample(np.random.default_rng(seed), 8).tolist()]
        validator = Validator(knobs, None, set())
        first, *others = validator.validate(asked)
        assert (first is None) == (knobs.apply(asked[0]) is None)
        valid = next(filter(None, [first, *others]))
        candidate = validator.candidate(valid.configuration)
        logged = json.loads(json.dumps(candidate.trace))
        assert knobs.find(logged) == valid.configuration
        again = knobs.apply(valid.configuration)
        assert again is not None and again.configuration == valid.configuration
        assert program_hash(again.schedule.mod) == candidate.hash
        trial = Trial(candidate.hash, logged, candidate.args, (1.0,), None, "j", 0, 0.0)
        assert program_hash(replay([trial], knobs.program, target)[0].sch.mod) == candidate.hash

    def test_only_locations_may_come_out_as_others(self, views, kind):
        knobs = views[kind]
        rows = knobs.space.sample(np.random.default_rng(1), 12).tolist()
        pairs = [(row, applied) for row in rows if (applied := knobs.apply(tuple(row))) is not None]
        assert pairs
        for row, applied in pairs:
            changed = [
                knob.name for knob, a, b in zip(knobs.space.knobs, row, applied.configuration, strict=True) if a != b
            ]
            assert all(name.startswith("location") for name in changed)

    def test_what_the_evolutionary_search_finds_has_a_configuration(self, views, target, kind):
        from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
        from autotune.tvm_backend.search.propose import Request
        from autotune.tvm_backend.search.tasks import program_hash

        knobs = views[kind]
        parameters = EvolutionParameters(8, 0, 4, 0.85)
        request = Request((), (), 4, None, seed=3)
        candidates = propose_without_knobs(knobs.program, target, request, parameters).candidates
        assert candidates
        for candidate in candidates:
            configuration = knobs.find(json.loads(json.dumps(candidate.trace)))
            assert configuration in knobs.space
            assert program_hash(knobs.apply(configuration).schedule.mod) == candidate.hash


def test_a_location_that_does_not_exist_stands_for_the_next_one_outwards(views):
    knobs = views["conv2d"]
    (at,) = [index for index, knob in enumerate(knobs.space.knobs) if knob.name.startswith("location")]
    row = knobs.space.sample(np.random.default_rng(4), 1)[0].tolist()
    settled = []
    for place in range(len(knobs.space.knobs[at].values)):
        applied = knobs.apply((*row[:at], place, *row[at + 1 :]))
        settled.append(applied.configuration[at] if applied else None)
    valid = [place for place in settled if place is not None]
    assert len(valid) > 1 and valid == sorted(valid)
    assert all(place <= asked for asked, place in enumerate(settled) if place is not None)
    assert all(settled[place] == place for place in valid)


def test_the_traces_of_another_task_have_no_configuration(views):
    from autotune.tvm_backend.search.propose import Validator

    validator = Validator(views["max_pool2d"], None, set())
    (valid,) = validator.validate([(0, 0, 0)])
    trace = json.loads(json.dumps(validator.candidate(valid.configuration).trace))
    assert views["max_pool2d"].find(trace) is not None
    assert views["conv2d"].find(trace) is None


@pytest.mark.parametrize("trace", [None, [], {}, [[], []], [[["SampleCategorical", [], [], []]], []], "text", [[1], 2]])
def test_what_is_no_trace_has_no_configuration(views, trace):
    assert views["conv2d"].find(trace) is None


def test_every_tile_that_tvm_draws_is_a_value(views):
    from autotune.tvm_backend.search.design_space import plain_trace, tune_context

    knobs = views["conv2d"]
    for seed in range(1, 4):
        drawn = list(tune_context(knobs.program, knobs.target, seed=seed).generate_design_space())
        assert drawn
        for schedule in drawn:
            assert knobs.find(plain_trace(schedule.trace.simplified(True))) is not None
