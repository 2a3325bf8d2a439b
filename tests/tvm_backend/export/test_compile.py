"""A task that was never measured is compiled with the schedule that the prior likes best."""

from __future__ import annotations

import numpy as np

from autotune.tvm_backend.export import compile as compiling
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.prior import prior
from autotune.tvm_backend.search.scores import nest_score


def test_it_is_better_than_nearly_all_and_always_the_same(target, matmul_of):
    matmul = matmul_of(96)
    once, again = (compiling._default_trial(matmul, target) for _ in range(2))
    assert once is not None and once == again
    knobs = Knobs(matmul, target)
    score = nest_score(knobs, prior("llvm"))
    assert score is not None
    others = score(knobs.space.sample(np.random.default_rng(3), 1000))
    assert score(np.array([knobs.find(once.trace)]))[0] > np.quantile(others, 0.99)


def test_a_task_without_tiles_gets_a_schedule_as_well(target, as_program):
    from tvm import te

    a = te.placeholder((64,), name="a")
    assert (
        compiling._default_trial(as_program(a, te.compute((64,), lambda i: a[i] + 1.0, name="b")), target) is not None
    )


def test_a_program_of_very_many_tensors_stays_as_it_is(target, as_program):
    from functools import reduce
    from operator import add

    from tvm import te

    parts = [te.placeholder((64,), name=f"a{index}") for index in range(64)]
    joined = te.compute((64,), lambda i: reduce(add, [part[i] for part in parts]), name="b")
    assert compiling._default_trial(as_program(*parts, joined), target) is None
