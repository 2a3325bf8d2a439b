"""The rule for tensor cores: which blocks it tiles, what it decides, and what follows a product."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from tvm import te, topi
from tvm.s_tir import Schedule

from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.cuda.pipeline_tiles import PREFIX
from autotune.tvm_backend.cuda.tensor_pipeline import marked
from autotune.tvm_backend.search.design_space import plain_trace, tune_context
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.pipeline_sketch import pipelined
from autotune.tvm_backend.search.tasks import space_size
from autotune.tvm_backend.target import resolve_target, tvm_target
from autotune.tvm_backend.untrusted_traces import check_trace

NAMES = {"float16": "Fp16", "bfloat16": "Bf16", "float32": "Tf32", "int8": "Int8"}


def with_pipeline(program, gpu, split=False):
    """The sketches with a pipeline, whose sum is split among blocks or not."""
    made = [item for item in tune_context(program, gpu).generate_design_space() if PREFIX in str(item.trace)]
    return [item for item in made if any(one.kind.name == "RFactor" for one in item.trace.insts) is split]


def product(as_program, dtype, rows=64, columns=64, terms=128):
    sums = "int32" if dtype == "int8" else "float32"
    a = te.placeholder((rows, terms), dtype, name="a")
    b = te.placeholder((terms, columns), dtype, name="b")
    k = te.reduce_axis((0, terms), "k")
    element = lambda i, j: te.sum(a[i, k].astype(sums) * b[k, j].astype(sums), k)  # noqa: E731
    return tf32.allow(as_program(a, b, topi.nn.relu(te.compute((rows, columns), element, name="c"))))


@pytest.mark.parametrize("dtype", NAMES)
def test_each_type_has_one_sketch_that_multiplies_it(as_program, gpu, dtype):
    (schedule,) = with_pipeline(product(as_program, dtype), gpu)
    ((found, _),) = marked(schedule.mod)
    assert found.element.name == NAMES[dtype]


def test_a_sum_may_be_split_among_blocks(product_of, gpu):
    made = with_pipeline(product_of(16, 64, 256, "float16"), gpu, split=True)
    assert made
    ((found, _),) = marked(made[0].mod)
    assert found.extents["batch"] * found.extents["term"] == 256


def test_a_sum_that_is_split_may_be_all_that_there_is(as_program, gpu):
    a = te.placeholder((32, 196), "float16", name="a")
    b = te.placeholder((196, 16), "float16", name="b")
    k = te.reduce_axis((0, 196), "k")
    element = lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k)  # noqa: E731
    made = with_pipeline(as_program(a, b, te.compute((32, 16), element, name="c")), gpu, split=True)
    assert made, "what adds the partial sums has as many loops as they have axes, and is no map of them"


def test_only_the_types_that_may_be_rounded_are(product_of, gpu):
    assert not with_pipeline(product_of(64, 64, 128, "float32"), gpu)
    schedule = Schedule(product_of(64, 64, 128, "float32"))
    assert pipelined(schedule, schedule.get_sblock("c"), ["Fp16", "Bf16", "Int8"]) is None
    assert pipelined(schedule, schedule.get_sblock("c"), ["Tf32"]) is not None


def test_other_blocks_are_left_alone(product_of):
    schedule = Schedule(product_of(64, 64, 128, "float16"))
    assert pipelined(schedule, schedule.get_sblock("compute"), ["Fp16"]) is None


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_pipelines_begin_with_sm_80(product_of, gpu, arch):
    target = tvm_target(resolve_target(f'{{"kind": "cuda", "arch": "{arch}"}}', 1).description)
    assert bool(with_pipeline(product_of(64, 64, 128, "float16"), target)) is (arch == "sm_80")


@pytest.fixture(scope="module")
def convolution(as_program):
    """A convolution in fp16 with a bias and a residual sum, which are read with the results."""
    x = te.placeholder((2, 14, 14, 24), "float16", name="x")
    w = te.placeholder((32, 3, 3, 24), "float16", name="w")
    bias = te.placeholder((1, 1, 1, 32), "float16", name="bias")
    other = te.placeholder((2, 14, 14, 32), "float16", name="other")
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float32"}
    sums = topi.cast(topi.nn.conv2d(x, w, 1, 1, 1, **layouts), "float16")
    return as_program(x, w, bias, other, topi.nn.relu(topi.add(topi.add(sums, bias), other)))


def test_a_convolution_is_one_product_whose_padding_is_a_condition(convolution, gpu):
    (schedule,) = with_pipeline(convolution, gpu)
    ((found, tiles),) = marked(schedule.mod)
    assert found.extents == {"row": 2 * 14 * 14, "column": 32, "term": 9 * 24}
    assert found.a.condition is not None and found.b.condition is None
    assert (found.a.together, found.b.together, tiles.vector) == (8, 8, 8), "16 bytes each"
    kept = {str(schedule.get(item).name_hint) for item in schedule.get_child_blocks(schedule.get_sblock("root"))}
    assert "pad_temp" not in kept


def test_every_decision_is_a_knob_and_its_trace_is_one_of_a_schedule(convolution, gpu):
    knobs = Knobs(convolution, gpu)
    drawn = map(tuple, knobs.space.sample(np.random.default_rng(1), 60).tolist())
    applied = list(islice(filter(None, map(knobs.apply, drawn)), 3))
    assert len(applied) == 3
    for item in applied:
        trace = plain_trace(item.schedule.trace)
        check_trace(trace)
        assert knobs.find(trace) == item.configuration
    assert space_size(convolution, gpu) > 100


def test_tiles_are_not_twice_as_large_as_the_product(product_of, gpu):
    (schedule,) = with_pipeline(product_of(33, 40, 64, "float16"), gpu)
    first, second, *_ = (item for item in schedule.trace.insts if item.kind.name == "SampleCategorical")
    assert list(map(int, first.attrs[0])) == [32, 64]
    assert list(map(int, second.attrs[0])) == [8, 16], "pieces of four columns"


def test_what_is_not_launchable_is_refused(product_of, gpu):
    program = product_of(256, 256, 256, "float16")
    context = tune_context(program, gpu)
    (schedule,) = with_pipeline(program, gpu)
    trace = schedule.trace
    drawn = [item for item in trace.insts if item.kind.name == "SampleCategorical"]
    for item, place in zip(drawn, (3, 3, 0), strict=False):  # 256 rows and columns for 64 threads
        trace = trace.with_decision(item, place, False)
    schedule = Schedule(program)
    trace.apply_to_schedule(schedule, False)
    schedule.enter_postproc()
    assert not all(rule.apply(schedule) for rule in context.space_generator.postprocs)
