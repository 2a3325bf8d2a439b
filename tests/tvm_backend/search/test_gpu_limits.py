"""What a GPU cannot launch never reaches the compiler: the replay of its trace refuses it."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def product():
    from autotune.tvm_backend.load import load_tvm

    load_tvm("cuda")
    import tvm
    from tvm import te

    a, b = (te.placeholder((128, 128), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, 128), name="k")
    c = te.compute((128, 128), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def valid(program, **limits):
    """How many of some random schedules pass the postprocessors that a replay applies."""
    from autotune.tvm_backend.search.design_space import tune_context
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target({**resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description, **limits})
    count = 0
    for seed in range(1, 5):
        context = tune_context(program, target, seed=seed)
        for schedule in context.generate_design_space():
            schedule.enter_postproc()
            count += all(rule.apply(schedule) for rule in context.space_generator.postprocs)
    return count


def test_shared_memory_and_threads_that_a_block_cannot_have_are_refused(product):
    usual = valid(product)
    assert usual > 0
    assert valid(product, max_shared_memory_per_block=4096) < usual
    assert valid(product, max_shared_memory_per_block=16) == 0
    assert valid(product, max_threads_per_block=64) < usual
