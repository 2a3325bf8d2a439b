"""Elementary functions in conditions, in guards and in each other compile, and have the right values."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi

_TWO_VALUES = {
    "in a condition": (
        lambda t, x, y: t.Select(t.pow(x, y) > 1.0, x, y),
        lambda x, y: np.where(x**y > 1, x, y),
    ),
    "in a condition of a condition": (
        lambda t, x, y: t.Select(t.Select(t.exp2(x) > 3.0, t.acos(y), x) > 1.0, t.exp2(x), y),
        lambda x, y: np.where(np.where(np.exp2(x) > 3, np.arccos(y), x) > 1, np.exp2(x), y),
    ),
    "in a guard": (
        lambda t, x, y: t.if_then_else(t.log1p(x) > 0.7, t.log1p(x), t.pow(y, x)),
        lambda x, y: np.where(np.log1p(x) > 0.7, np.log1p(x), y**x),
    ),
    "in a guard of a guard": (
        lambda t, x, y: t.if_then_else(t.if_then_else(t.pow(x, y) > 1.0, t.exp(y), x) > 2.0, t.pow(x, y), t.log(x)),
        lambda x, y: np.where(np.where(x**y > 1, np.exp(y), x) > 2, x**y, np.log(x)),
    ),
    "in another function": (
        lambda t, x, y: t.pow(t.exp2(x), y) + t.exp2(t.log1p(x)),
        lambda x, y: np.exp2(x) ** y + np.exp2(np.log1p(x)),
    ),
    "in a guard in another function": (
        lambda t, x, y: t.log1p(t.if_then_else(x > 1.0, t.exp(y), x)) + t.exp(y),
        lambda x, y: np.log1p(np.where(x > 1, np.exp(y), x)) + np.exp(y),
    ),
    "in a guard of a guard in another function": (
        lambda t, x, y: t.exp2(t.if_then_else(x > 1.0, t.if_then_else(y > 0.5, t.log(x), t.exp(y)), t.tanh(y))),
        lambda x, y: np.exp2(np.where(x > 1, np.where(y > 0.5, np.log(x), np.exp(y)), np.tanh(y))),
    ),
}


@pytest.mark.parametrize(
    ("form", "is_vector"), [*((form, True) for form in _TWO_VALUES), ("in a guard of a guard", False)]
)
def test_a_function_compiles_wherever_it_stands(target, form, is_vector):
    import tvm
    from tvm import te, tirx

    from autotune.tvm_backend.codegen.lowering_passes import pipeline

    program, truth = _TWO_VALUES[form]
    x, y = (te.placeholder((32,), "float32", name) for name in "xy")
    z = te.compute((32,), lambda i: program(tirx, x[i], y[i]), "z")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y, z]))
    if is_vector:
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("z"))[-1])
    main = tvm.tirx.build(schedule.mod, target=target, pipeline=pipeline(target))["main"]
    values = [np.random.default_rng(seed).uniform(0.1, high, 32).astype("float32") for seed, high in ((1, 3.0), (2, 1))]
    output = tvm.runtime.empty((32,), "float32")
    main(*map(tvm.runtime.tensor, values), output)
    np.testing.assert_allclose(output.numpy(), truth(*values), rtol=1e-5)


def test_what_a_guard_keeps_from_being_read_stays_behind_it(target):
    """Reading an element that is not there may end the process."""
    from tvm import te, tirx

    from autotune.tvm_backend.codegen.flat_formulas import write_around

    x = te.placeholder((32,), "float32", "x")
    one, two = (tirx.const(number, "float32") for number in (1.0, 2.0))
    z = te.compute(
        (40,), lambda i: tirx.if_then_else(i < 32, tirx.if_then_else(tirx.pow(x[i], x[i]) > 1.0, x[i], one), two), "z"
    )
    before = te.create_prim_func([x, z])
    after = write_around(before)
    values = []
    for function in (before, after):
        tvm_ffi.structural_walk(function.body, ((tirx.BufferStore, lambda store: values.append(store.value)),))
    was, is_now = values
    assert not was.same_as(is_now)
    assert is_now.op.name == was.op.name == "prim.if_then_else"
    assert is_now.args[0].same_as(was.args[0])


def test_a_program_without_inner_functions_stays_as_it_is(target):
    from tvm import te, tirx

    from autotune.tvm_backend.codegen.flat_formulas import write_around

    x = te.placeholder((32,), "float32", "x")
    z = te.compute((32,), lambda i: tirx.exp(x[i]) + tirx.Select(x[i] > 1.0, tirx.log(x[i]), x[i]), "z")
    function = te.create_prim_func([x, z])
    assert write_around(function).same_as(function)
