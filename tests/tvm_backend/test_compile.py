"""A task that was never measured is compiled with the schedule that the prior likes best."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend import compile as compiling
from autotune.tvm_backend.draft import nest_draft
from autotune.tvm_backend.knobs import Knobs
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.prior import prior


@pytest.fixture(scope="module")
def target():
    load_tvm("llvm")
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def program(*build):
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(build).with_attr("global_symbol", "main")})


def test_it_is_better_than_nearly_all_and_always_the_same(target):
    from tvm import te

    a, b = (te.placeholder((96, 96), name=name) for name in "ab")
    k = te.reduce_axis((0, 96), "k")
    matmul = program(a, b, te.compute((96, 96), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c"))
    once, again = (compiling._drawn(matmul, target) for _ in range(2))
    assert once is not None and once == again
    knobs = Knobs(matmul, target)
    draft = nest_draft(knobs, prior("llvm"))
    assert draft is not None
    others = draft(knobs.space.sample(np.random.default_rng(3), 1000))
    assert draft(np.array([knobs.find(once.trace)]))[0] > np.quantile(others, 0.99)


def test_a_task_without_tiles_gets_a_schedule_as_well(target):
    from tvm import te

    a = te.placeholder((64,), name="a")
    assert compiling._drawn(program(a, te.compute((64,), lambda i: a[i] + 1.0, name="b")), target) is not None
