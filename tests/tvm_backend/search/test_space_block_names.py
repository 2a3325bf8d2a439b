"""A trace that was recorded on one model is applied to an equal program of another."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from autotune.storage.formats import Trial
from autotune.tvm_backend.kernels.build_kernel import build_candidate
from autotune.tvm_backend.search.design_space import replay, with_names_of
from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
from autotune.tvm_backend.search.propose import Request
from autotune.tvm_backend.search.tasks import task_hash

SIZE = 1024


def row_sums(*names):
    """A sum over the rows of each of these arrays, and the sum of all: its blocks are called after the arrays."""
    data = [te.placeholder((8, SIZE), name=name) for name in names]
    sums = [row_sum(item) for item in data]
    total = te.compute((8,), lambda i: sum((item[i] for item in sums[1:]), sums[0][i]), name="total")
    program = te.create_prim_func([*data, total]).with_attr({"global_symbol": "main", "tirx.noalias": True})
    return tvm.IRModule({"main": program})


def row_sum(data):
    k = te.reduce_axis((0, SIZE))
    return te.compute((8,), lambda i: te.sum(data[i, k], axis=k), name=f"{data.op.name}_red")


def trial_of(program, target):
    tiny = EvolutionParameters(population=4, generations=0, init_unmeasured=1, mutation_probability=0.0)
    candidate = propose_without_knobs(program, target, Request((), (), 1, None, 1), tiny).candidates[0]
    return Trial(candidate.hash, candidate.trace, candidate.args, (1.0,), None, "", 0, 0.0)


@pytest.fixture
def theirs(target):
    return trial_of(row_sums("lv9", "lv12"), target)


def test_equal_programs_share_trials_whatever_their_blocks_are_called(theirs, target, tmp_path):
    ours = row_sums("lv7", "lv193")
    assert task_hash(ours) == task_hash(row_sums("lv9", "lv12"))
    build_candidate(theirs, ours, target, tmp_path / "kernel.so")
    arrays = [np.random.default_rng(seed).random((8, SIZE), np.float32) for seed in (1, 2)]
    result = tvm.runtime.tensor(np.zeros(8, np.float32))
    tvm.runtime.load_module(str(tmp_path / "kernel.so"))["main"](*map(tvm.runtime.tensor, arrays), result)
    np.testing.assert_allclose(result.numpy(), arrays[0].sum(1) + arrays[1].sum(1), rtol=1e-5)


def test_blocks_of_one_ending_are_taken_by_their_numbers(theirs):
    renamed = with_names_of(theirs.trace, row_sums("lv7", "lv193"))
    names = dict.fromkeys(item[2][0] for item in renamed[0] if item[0] == "GetSBlock")
    assert {"lv7_red", "lv193_red"} <= set(names) and not any(name.startswith(("lv9", "lv12")) for name in names)


def test_a_trace_of_another_program_stays_as_it_is(theirs, target):
    k = te.reduce_axis((0, SIZE))
    data = te.placeholder((8, SIZE), name="x")
    largest = te.compute((8,), lambda i: te.max(data[i, k], axis=k), name="largest")
    other = tvm.IRModule({"main": te.create_prim_func([data, largest]).with_attr("global_symbol", "main")})
    assert with_names_of(theirs.trace, other) is theirs.trace
    with pytest.raises(tvm.s_tir.ScheduleError):
        replay([theirs], other, target)
