"""What MetaSchedule's own rules hide is in the search space of GPUs, and its kernels are right."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from autotune.tvm_backend.cuda import tf32
from autotune.tvm_backend.sanitize import check_trace
from autotune.tvm_backend.search.design_space import plain_trace, tune_context
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.tasks import space_size
from autotune.tvm_backend.target import resolve_target, tvm_target

from ...cuda_stand_in.on_cpu import image

PIPELINED = "mma_sync_m16n8k8"
WMMA = "wmma_sync"
AHEAD = "software_pipeline_async_stages"


def sketches(program, gpu):
    """The instructions of each sketch, as text."""
    return [str(schedule.trace) for schedule in tune_context(program, gpu).generate_design_space()]


@pytest.fixture(scope="module")
def of_halves(product_of, gpu):
    """The sketches of a product of fp16."""
    return sketches(product_of(64, 64, 128, "float16"), gpu)


def test_pipelines_for_tensor_cores_are_among_the_sketches_of_fp16_alone(of_halves, product_of, gpu):
    made = of_halves
    assert sum(PIPELINED in text for text in made) == 1
    assert sum("wmma_sync" in text for text in made) == len(made) - 1
    others = (product_of(64, 64, 128, "float32"), product_of(16, 64, 128, "float16"))  # with too few rows for its tiles
    for texts in (sketches(program, gpu) for program in others):
        assert texts and not any(PIPELINED in text for text in texts)


def test_each_sketch_with_wmma_is_there_again_with_tiles_copied_one_and_three_steps_ahead(of_halves, product_of, gpu):
    for texts in (of_halves, sketches(tf32.allow(product_of(64, 64, 128, "float32")), gpu)):
        made = [text for text in texts if WMMA in text]
        waiting = [text for text in made if AHEAD not in text]
        assert waiting
        for steps in (1, 3):
            assert sum(f"[0, 0, {steps}]" in text for text in made) == len(waiting)
        assert len(made) == 3 * len(waiting)


@pytest.fixture(scope="module")
def image_of_halves(as_program):
    """A convolution of an image of fp16 whose channels are innermost."""
    from tvm import te, topi

    x = te.placeholder((1, 14, 14, 16), "float16", name="x")
    w = te.placeholder((32, 3, 3, 16), "float16", name="w")
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float32"}
    return as_program(x, w, topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1, **layouts)))


def test_tiles_for_which_a_rule_fails_are_drawn_again(image_of_halves, gpu):
    """Of some seeds, as of 13, the first tiles do not divide the loops, and TVM's rule for tensor cores raises."""
    counts = [len(tune_context(image_of_halves, gpu, seed=number).generate_design_space()) for number in (1, 13)]
    assert counts[0] == counts[1] > 0


def test_tiles_are_not_copied_ahead_before_sm_80(product_of, gpu):
    turing = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_75"}', 1).description)
    made = [text for text in sketches(product_of(64, 64, 128, "float16"), turing) if WMMA in text]
    assert made
    assert not any(AHEAD in text for text in made)


def test_every_decision_of_a_pipeline_is_a_knob_and_its_trace_is_one_of_a_schedule(product_of, gpu):
    program = product_of(64, 128, 256, "float16")
    knobs = Knobs(program, gpu)
    drawn = knobs.space.sample(np.random.default_rng(1), 60).tolist()
    texts = [str(instructions) for instructions, _ in knobs.sketches()]
    for is_wmma in (True, False):
        rows = [tuple(row) for row in drawn if AHEAD in texts[row[0]] and (WMMA in texts[row[0]]) is is_wmma]
        applied = list(islice(filter(None, map(knobs.apply, rows)), 3))
        assert applied
        for item in applied:
            trace = plain_trace(item.schedule.trace)
            check_trace(trace)
            assert knobs.find(trace) == item.configuration
    assert space_size(program, gpu) > space_size(product_of(64, 128, 256, "float32"), gpu) / 1e6


# Draws schedules of a product, and verifies the first of each kind. Prints the kinds, and what the kernels do.
SCRIPT = """
import sys
import unittest.mock
from autotune.tvm_backend.load import load_for_tuning

load_for_tuning("cuda", ())
import tvm
from tvm import te
from autotune.tvm_backend.cuda import compiler
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.shared_library import build_library
from autotune.tvm_backend.search.design_space import tune_context
from autotune.tvm_backend.target import resolve_target, tvm_target

description = resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description
target = tvm_target(description)
dtype, rows, terms = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
a, b = te.placeholder((rows, terms), dtype, name="a"), te.placeholder((terms, 32), dtype, name="b")
k = te.reduce_axis((0, terms), "k")
element = lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k)
c = te.compute((rows, 32), element, name="c")
out = te.compute((rows, 32), lambda i, j: c[i, j] + 1.0, name="out")
program = tvm.IRModule({"main": te.create_prim_func([a, b, out]).with_attr("global_symbol", "main")})
truth = verify.compute(program, description["host"])
compile_source = compiler.compile_source
done = {}

def check(schedule, kind):
    sources = []
    wanted = lambda source, arch: (sources.append(source), compile_source(source, arch))[1]
    with unittest.mock.patch.object(compiler, "compile_source", wanted):
        build_library(schedule.mod, target, f"{sys.argv[1]}/{len(done)}.so")
    verify.Verifier(truth, tvm.cuda(0)).check(tvm.runtime.load_module(f"{sys.argv[1]}/{len(done)}.so")["main"])
    words = ("mma.sync", "ldmatrix", "shared.global", "wmma::mma_sync", "c_rf_ptr")
    done[kind] = [word for word in words if word in sources[0]]

for seed in range(1, 60):
    context = tune_context(program, target, seed=seed)
    for schedule in context.generate_design_space():
        split = any(item.kind.name == "RFactor" for item in schedule.trace.insts)
        text = str(schedule.trace)
        ahead = "software_pipeline_async_stages" in text and "wmma" in text
        kind = "pipelined" if "mma_sync_m16n8k8" in text else "split" if split else "ahead" if ahead else "usual"
        schedule.enter_postproc()
        if kind not in done and all(rule.apply(schedule) for rule in context.space_generator.postprocs):
            check(schedule, kind)
    if len(done) == int(sys.argv[5]):
        break
for kind, words in sorted(done.items()):
    print(f"{kind}: {' '.join(words)}")
"""
AHEAD_OF_USE = "ahead: shared.global wmma::mma_sync"
SPLIT = [AHEAD_OF_USE, "split: wmma::mma_sync c_rf_ptr", "usual: wmma::mma_sync"]
PIPELINE = [AHEAD_OF_USE, "pipelined: mma.sync ldmatrix shared.global", "usual: wmma::mma_sync"]


@pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")
@pytest.mark.parametrize(
    ("dtype", "rows", "terms", "wanted"),
    [
        ("float16", 32, 64, PIPELINE),
        *(pytest.param(dtype, 16, 256, SPLIT, marks=pytest.mark.slow) for dtype in ("float16", "bfloat16")),
        pytest.param("float32", 16, 256, ["split: c_rf_ptr", "usual:"], marks=pytest.mark.slow),
    ],
)
def test_what_the_kernels_of_each_kind_compute_is_right(computing_gpu, tmp_path, dtype, rows, terms, wanted):
    done = computing_gpu.python(SCRIPT, tmp_path, dtype, rows, terms, len(wanted))
    assert [line.strip() for line in done.stdout.splitlines()] == wanted, done.stderr


def test_threads_share_long_sums_only(as_program, gpu):
    """A pooling of 3 by 3 has nine terms, which a warp would be wasted on."""
    from tvm import te, topi

    def shares(width, window):
        x = te.placeholder((1, 8, width, width), name="x")
        pooled = topi.nn.pool2d(x, (window, window), (window, window), (1, 1), (0, 0, 0, 0), "max")
        return sum("[4, 8, 16" in text for text in sketches(as_program(x, pooled), gpu))

    assert shares(36, 3) == 0
    assert shares(36, 12) > 0
