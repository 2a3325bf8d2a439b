"""Every sampled tile of a product of packed weights computes the same, and that by hand is one of the space."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.intrinsics.few_bit_dots import PACKED_DOTS, packed_dot
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.operators.few_bit_product import PackedForm, pack, packed_product
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.propose import by_hand
from autotune.tvm_backend.search.tasks import as_program

CPUS = {
    "avx512vnni": ("icelake-server", "avx512_vnni"),
    "avxvnni": ("alderlake", "avx_vnni"),
    "avx2": ("x86-64-v3", "avx2"),
}
FORMS = (
    PackedForm(bits=4, block=32, scales="float16", zero=None, word=4),
    PackedForm(bits=8, block=32, scales="float16", zero=128, word=4),
    PackedForm(bits=6, block=16, scales="float32", zero=32, word=4),
    PackedForm(bits=4, block=32, scales="float16", zero=8, word=1),
)


def operands(form, rows, outputs, columns):
    """The arguments of the program, and what it computes."""
    rng = np.random.default_rng(5)
    blocks = columns // form.block
    codes = rng.integers(0, 2**form.bits, (outputs, columns)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.02, (outputs, blocks)).astype(form.scales)
    offset = None if form.zero is not None else rng.uniform(-0.2, 0.2, (outputs, blocks)).astype(form.scales)
    weights = pack(codes, scale, offset, form)
    x = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    step = (
        rng.uniform(0.01, 0.02, (rows, blocks)).astype(np.float32) if form.word == 4 else np.ones((rows, blocks), "f4")
    )
    floats = x.reshape(rows, blocks, -1) * step[..., None]
    by_block = codes.reshape(outputs, blocks, -1).astype(np.float32) - (form.zero or 0)
    matrix = by_block * scale[..., None].astype(np.float32)
    if offset is not None:
        matrix = matrix + offset[..., None].astype(np.float32)
    more = rng.standard_normal((rows, outputs)).astype(np.float32)
    activations = [x, step] if form.word == 4 else [x.astype(np.float32)]
    right = floats.reshape(rows, -1) @ matrix.reshape(outputs, -1).T + more
    return [*activations, floats.sum(axis=-1).astype(np.float32), *weights.arrays, more, np.zeros_like(more)], right


def assert_computes(module, target, arrays, right):
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(module, target=target, pipeline=pipeline(target))["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), right, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("feature", CPUS)
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.slow] * (form.bits != 6)) for form in FORMS], ids=str
)
def test_all_schedules_compute_the_product(target, feature, form):
    name, flag = CPUS[feature]
    if flag not in cpu_flags():
        pytest.skip(f"this CPU lacks {flag}")
    cpu = tvm.target.Target({"kind": "llvm", "mcpu": name, "num-cores": 2})
    shape = (16, 64, 96)
    arrays, right = operands(form, *shape)
    program = as_program(packed_product(form, shape, cpu, residual=True))
    known = by_hand(program)
    knobs = Knobs(program, cpu)
    assert knobs.transfer(known.trace) is not None
    (candidate,) = replay([known], program, cpu)
    assert_computes(candidate.sch.mod, cpu, arrays, right)
    rng = np.random.default_rng(1)
    for schedule in random_schedules(program, cpu, rng, 2):
        assert_computes(schedule.mod, cpu, arrays, right)


def random_schedules(program, cpu, rng, count):
    """Schedules of each sketch, with other decisions than the sketch has."""
    from autotune.tvm_backend.search.design_space import design_space, tune_context

    context = tune_context(program, cpu)
    for sketch in design_space(program, cpu):
        for _ in range(count):
            schedule = tvm.s_tir.Schedule(program, seed=int(rng.integers(1, 2**31)))
            fresh = type(sketch.trace)(list(sketch.trace.insts), {})
            fresh.apply_to_schedule(schedule, remove_postproc=True)
            assert all(step.apply(schedule) for step in context.space_generator.postprocs)
            yield schedule


@pytest.mark.parametrize(("bits", "feature", "name"), [
    (4, "avx512vnni", "autotune_packed_vpdpbusd_512"),
    (8, "avxvnni", "autotune_packed_vpdpbusd_256"),
    (4, "avx2", "autotune_packed_pmaddubsw_256"),
])  # fmt: skip
def test_the_best_instruction_of_a_cpu_is_taken(target, bits, feature, name):
    cpu = tvm.target.Target({"kind": "llvm", "mcpu": CPUS[feature][0], "num-cores": 2})
    assert packed_dot(cpu, bits).name == name


def test_sums_of_two_products_of_eight_bits_would_saturate(target):
    assert packed_dot(target, 8) is None
    assert {dot.name for dot in PACKED_DOTS if dot.narrow} == {"autotune_packed_pmaddubsw_256"}
