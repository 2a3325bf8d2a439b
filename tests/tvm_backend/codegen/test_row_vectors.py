"""Vector loops over several rows are compiled as vectors of one row each, and compute the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir.meta_schedule.database import Workload
from tvm_ffi import structural_equal

from autotune.errors import DamagedFile
from autotune.tvm_backend.codegen.row_vectors import module_to_compile, record_to_compile, without_guarded_vectors
from autotune.tvm_backend.kernels.build_kernel import build_candidate, build_library
from autotune.tvm_backend.search.design_space import tuning_record
from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
from autotune.tvm_backend.search.propose import Request

ROWS = 16
COLUMNS = 8
DEPTH = 32


@pytest.fixture(scope="module")
def product():
    """A product whose rows are half a vector of AVX-512, or a whole one of AVX2."""
    left = te.placeholder((ROWS, DEPTH), name="left")
    right = te.placeholder((DEPTH, COLUMNS), name="right")
    k = te.reduce_axis((0, DEPTH), name="k")
    out = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="out")
    program = te.create_prim_func([left, right, out]).with_attr({"global_symbol": "main", "tirx.noalias": True})
    return tvm.IRModule({"main": program})


@pytest.fixture(scope="module")
def candidates(product, target):
    """Random candidates that MetaSchedule gives vector loops over several rows."""
    some = EvolutionParameters(population=64, generations=0, init_unmeasured=48, mutation_probability=0.0)
    drawn = propose_without_knobs(product, target, Request((), (), 32, None, 1), some).candidates
    wide = [item for item in drawn if max(extents(tuning_record, item, product, target), default=0) > COLUMNS]
    assert wide
    return wide


def schedule(make, item, program, target):
    return make(item, Workload(program), target).as_measure_candidate().sch.mod


def extents(make, item, program, target):
    """The extents of the vector loops."""
    text = schedule(make, item, program, target).script()
    return [int(extent) for extent in re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", text)]


def test_no_vector_crosses_a_row(candidates, product, target):
    for item in candidates:
        assert max(extents(record_to_compile, item, product, target)) <= COLUMNS


def test_the_program_of_a_record_needs_no_replay(candidates, product, target):
    for item in candidates[:4]:
        program = module_to_compile(item, Workload(product), target)
        assert structural_equal(program, schedule(record_to_compile, item, product, target))


def test_the_result_is_the_same_bit_for_bit(candidates, product, target, tmp_path):
    drawn = np.random.default_rng(5)
    arrays = [drawn.standard_normal(shape).astype(np.float32) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS))]
    for item in candidates[:3]:
        results = []
        for make in (tuning_record, record_to_compile):
            library = tmp_path / f"{item.hash}-{make.__name__}.so"
            build_library(schedule(make, item, product, target), target, library)
            out = tvm.runtime.tensor(np.zeros((ROWS, COLUMNS), np.float32))
            tvm.runtime.load_module(str(library))["main"](*map(tvm.runtime.tensor, arrays), out)
            results.append(out.numpy())
        assert np.array_equal(*results)
        np.testing.assert_allclose(results[0], arrays[0] @ arrays[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("columns", "vectors"), ((6625, False), (6656, True)))
def test_only_vectors_that_end_with_the_tensor_are_kept(target, tmp_path, columns, vectors):
    """MetaSchedule's own schedule of an addition has vectors of 64 elements, whatever the number of columns."""
    left = te.placeholder((1, 5, columns), name="left")
    right = te.placeholder((columns,), name="right")
    out = te.compute((1, 5, columns), lambda i, j, k: left[i, j, k] + right[k], name="out")
    program = te.create_prim_func([left, right, out]).with_attr({"global_symbol": "main", "tirx.noalias": True})
    module = tvm.IRModule({"main": program})
    some = EvolutionParameters(population=8, generations=0, init_unmeasured=1, mutation_probability=0.0)
    (item,) = propose_without_knobs(module, target, Request((), (), 1, None, 1), some).candidates
    workload = Workload(module)
    record = without_guarded_vectors(record_to_compile(item, workload, target), workload, target)
    scheduled = record.as_measure_candidate().sch.mod
    assert ("T.vectorized" in scheduled.script()) == vectors
    assert "T.parallel" in scheduled.script()
    build_library(scheduled, target, tmp_path / "kernel.so")
    arrays = [np.random.default_rng(3).random(shape, np.float32) for shape in ((1, 5, columns), (columns,))]
    result = tvm.runtime.tensor(np.zeros((1, 5, columns), np.float32))
    tvm.runtime.load_module(str(tmp_path / "kernel.so"))["main"](*map(tvm.runtime.tensor, arrays), result)
    assert np.array_equal(result.numpy(), arrays[0] + arrays[1])


@pytest.mark.parametrize(
    ("element", "shape", "before", "after"),
    [
        (lambda data, i, j, k: data[j, i, k], (64, 4, 8), 8, 8),
        (lambda data, i, j: data[j // 8, i, j % 8], (64, 32), 32, 8),  # heads of attention are joined
        (lambda data, i, j, k: data[i, j, k], (4, 64, 8), 64, 64),  # side by side over all rows
    ],
)
def test_a_copy_has_vectors_of_neighbours(target, tmp_path, element, shape, before, after):
    data = te.placeholder((4, 64, 8), name="data")
    out = te.compute(shape, lambda *index: element(data, *index) + 1.0, name="out")
    program = te.create_prim_func([data, out]).with_attr({"global_symbol": "main", "tirx.noalias": True})
    module = tvm.IRModule({"main": program})
    some = EvolutionParameters(population=8, generations=0, init_unmeasured=1, mutation_probability=0.0)
    (item,) = propose_without_knobs(module, target, Request((), (), 1, None, 1), some).candidates
    assert extents(tuning_record, item, module, target) == [before]
    assert extents(record_to_compile, item, module, target) == [after]
    library = tmp_path / "kernel.so"
    build_library(schedule(record_to_compile, item, module, target), target, library)
    given = np.random.default_rng(2).standard_normal((4, 64, 8)).astype(np.float32)
    made = tvm.runtime.tensor(np.zeros(shape, np.float32))
    tvm.runtime.load_module(str(library))["main"](tvm.runtime.tensor(given), made)
    moved = given if shape == given.shape else given.transpose(1, 0, 2).reshape(shape)
    assert np.array_equal(made.numpy(), moved + np.float32(1))


def test_a_kernel_is_built_only_for_the_arguments_that_it_has(candidates, product, target, tmp_path):
    """It does not check them when it is called."""
    item = candidates[0]
    build_candidate(item, product, target, tmp_path / "kernel.so")
    smaller = replace(item, args=[["TENSOR", "float32", [1, 1]], *item.args[1:]])
    with pytest.raises(DamagedFile, match="arguments"):
        build_candidate(smaller, product, target, tmp_path / "refused.so")
    assert not (tmp_path / "refused.so").exists()
