"""WMMA in bf16 and TF32: the sketches that there are, and that CUDA's compilers take their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest

from autotune.tvm_backend.cuda import cubin, tf32
from autotune.tvm_backend.cuda.wmma import BF16, TF32
from autotune.tvm_backend.kernels.shared_library import build_library
from autotune.tvm_backend.sanitize import check_trace
from autotune.tvm_backend.search.design_space import plain_trace, tune_context
from autotune.tvm_backend.search.knobs import Applied, Knobs
from autotune.tvm_backend.target import resolve_target, tvm_target

both = pytest.mark.parametrize("operands", [TF32, BF16], ids=["tf32", "bf16"])


@pytest.fixture(scope="module")
def product_in(product_of):
    """Makes a product that tensor cores may compute with some operands."""
    return lambda operands, *sizes: tf32.allow(product_of(*sizes, operands.element))


def marked(schedules, operands):
    return [schedule for schedule in schedules if operands.mark in str(schedule.trace)]


@dataclass(frozen=True)
class Drawn:
    """Schedules that were drawn from those of a product, but for what is not on tensor cores."""

    knobs: Knobs
    applied: list[Applied]


@pytest.fixture(scope="module", params=[TF32, BF16], ids=["tf32", "bf16"])
def drawn(request, product_in, gpu):
    """The schedules of a product of each of the operands, which take seconds to apply."""
    knobs = Knobs(product_in(request.param, 64, 64, 64), gpu)
    configurations = map(tuple, knobs.space.sample(np.random.default_rng(1), 150).tolist())
    valid = filter(None, map(knobs.apply, configurations))
    return Drawn(knobs, list(islice((item for item in valid if request.param.mark in str(item.schedule.trace)), 5)))


def test_its_traces_are_written_and_found_again(drawn):
    assert len(drawn.applied) == 5
    for item in drawn.applied:
        trace = plain_trace(item.schedule.trace)
        check_trace(trace)
        assert drawn.knobs.find(trace) == item.configuration


@pytest.mark.parametrize(("operands", "lengthened"), [(TF32, {(4, 8), (4, 4)}), (BF16, {(8, 8)})], ids=["tf32", "bf16"])
def test_rows_in_shared_memory_begin_in_other_banks(product_in, gpu, operands, lengthened):
    """The second matrix lies by rows or by columns."""
    schedules = marked(tune_context(product_in(operands, 64, 64, 64), gpu).generate_design_space(), operands)
    aligned = [
        [item.attrs for item in schedule.trace.insts if item.kind.name == "StorageAlign"] for schedule in schedules
    ]
    assert {tuple(int(attrs[-1]) for attrs in of_schedule) for of_schedule in aligned} == lengthened


@both
def test_sums_are_split_among_blocks_where_there_are_few_rows(product_in, gpu, operands):
    schedules = marked(tune_context(product_in(operands, 16, 64, 256), gpu).generate_design_space(), operands)
    kinds = [{str(item.kind.name) for item in schedule.trace.insts} for schedule in schedules]
    assert {"RFactor" in kind for kind in kinds} == {True, False}


def test_bf16_is_for_products_of_bf16_from_sm_80_on(product_of, gpu):
    turing = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_75"}', 1).description)
    made = list(tune_context(product_of(16, 64, 256, "bfloat16"), gpu).generate_design_space())
    assert marked(made, BF16) == made, "nor has it others, some of which TVM cannot compile"
    assert not marked(tune_context(product_of(64, 64, 64, "bfloat16"), turing).generate_design_space(), BF16)
    assert not marked(tune_context(product_of(64, 64, 64, "float16"), gpu).generate_design_space(), BF16)


def test_both_compilers_take_its_kernels(drawn, gpu, tool, tmp_path):
    build_library(drawn.applied[0].schedule.mod, gpu, tmp_path / "kernel.so")
    (code,) = cubin.find((tmp_path / "kernel.so").read_bytes())
    assert code.arch == "sm_90"
