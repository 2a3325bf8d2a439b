"""A batch takes over what did well on a similar program: the same operator with something else fused to it."""

from __future__ import annotations

import json

import pytest

from autotune import strategies
from autotune.storage.formats import Trial
from autotune.strategies import samplers
from autotune.tvm_backend.search.design_space import sampled
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import Request, propose


@pytest.fixture(scope="module")
def plain(target, matmul_of):
    return Knobs(matmul_of(64), target)


@pytest.fixture(scope="module")
def fused(target, as_program):
    """The same product with a sum and a rectifier behind it."""
    from tvm import te

    a, b, bias = (te.placeholder((64, 64), name=name) for name in ("a", "b", "bias"))
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    summed = te.compute((64, 64), lambda i, j: c[i, j] + bias[i, j], name="summed")
    return Knobs(as_program(a, b, bias, te.compute((64, 64), lambda i, j: te.max(summed[i, j], 0.0))), target)


def batch(knobs, count=8, trials=(), warm_starts=(), seed=1):
    request = Request(trials, (), count, None, seed, warm_starts=warm_starts)
    return propose(knobs, strategies.get("random"), samplers.make("greedy", 0.0, True), request).candidates


def logged(item, us=100.0):
    return Trial(item.hash, item.trace, item.args, (us,), None, "j", 0, 0.0)


def test_what_a_trace_decides_is_decided_in_the_sketch_of_the_same_form(plain, fused):
    transfers = 0
    for seed in range(4):
        for candidate in batch(fused, seed=seed):
            trace = json.loads(json.dumps(candidate.trace))
            if (transferred := plain.transfer(trace)) is not None:
                transfers += 1
                assert plain.apply(transferred) is None or _decided(plain, transferred) == sampled(trace)
            assert fused.transfer(trace) == fused.find(trace)
    assert transfers > 0


def _decided(knobs, configuration):
    values = [knobs.space.knobs[at].values[configuration[at]] for at in knobs.sketches()[configuration[0]][1]]
    return [list(value) if isinstance(value, tuple) else value for value in values]


def test_a_trace_of_another_size_or_what_is_no_trace_decides_nothing(plain, target, matmul_of):
    (candidate,) = batch(Knobs(matmul_of(48), target), 1)
    strange = [None, [], {}, [[], []], [["SampleCategorical"], []], [[[1, [], [], []]], []], "text"]
    assert [plain.transfer(trace) for trace in (candidate.trace, *strange)] == [None] * 8


@pytest.fixture(scope="module")
def warm_starts(plain, fused):
    """Traces of the fused program that the plain one can take over, and the configurations that they come out as."""
    pairs = [(item.trace, plain.transfer(item.trace)) for item in batch(fused, 24)]
    applied = [(trace, plain.apply(configuration)) for trace, configuration in pairs if configuration]
    return [(trace, valid.configuration) for trace, valid in applied if valid]


def test_warm_starts_come_first_and_are_a_quarter_of_a_batch(plain, warm_starts):
    assert len(warm_starts) > 2
    told = [plain.find(item.trace) for item in batch(plain, 8, warm_starts=[trace for trace, _ in warm_starts])]
    assert told[:2] == [configuration for _, configuration in warm_starts[:2]]
    assert not set(told[2:]) & {configuration for _, configuration in warm_starts[2:]}
    assert len(set(told)) == 8


def test_a_warm_start_that_was_measured_is_not_taken_again_and_the_next_one_is(plain, warm_starts):
    traces = [trace for trace, _ in warm_starts]
    (first,) = batch(plain, 1, warm_starts=traces)
    (second,) = batch(plain, 1, trials=[logged(first)], warm_starts=traces)
    assert [plain.find(item.trace) for item in (first, second)] == [
        configuration for _, configuration in warm_starts[:2]
    ]


def test_a_warm_start_is_proposed_whatever_the_seed(plain, warm_starts):
    firsts = {batch(plain, 2, warm_starts=[warm_starts[0][0]], seed=seed)[0].hash for seed in range(1, 4)}
    assert len(firsts) == 1
