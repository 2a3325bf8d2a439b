"""Long sums with few results are split among the blocks of a GPU, and are what they were."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.cuda.multiprocessors import multiprocessors
from autotune.tvm_backend.search.design_space import design_space, plain_trace
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.search.occupancy import GpuLimits, Occupancy
from autotune.tvm_backend.search.scores import estimate
from autotune.tvm_backend.search.split_reduction import split_schedules
from autotune.tvm_backend.search.tiled_block import Einsum
from autotune.tvm_backend.untrusted_traces import check_trace


@pytest.fixture(scope="module")
def late_layer(as_program):
    """The last convolution of ResNet-18, with what follows it: 49 rows, 512 columns and 4608 terms."""
    from tvm import te, topi

    shapes = {"x": (1, 7, 7, 512), "w": (3, 3, 512, 512), "bias": (512,), "way": (1, 7, 7, 512)}
    x, w, bias, way = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    sums = topi.nn.conv2d_nhwc(x, w, 1, 1, 1, "float32")
    return as_program(x, w, bias, way, topi.nn.relu(topi.add(topi.add(sums, bias), way)))


def shares(program, target):
    return [
        schedule.get(schedule.get_loops(schedule.get_sblock("c_rf"))[0]).extent
        for schedule in split_schedules(program, target)
    ]


def test_as_many_blocks_share_a_sum_as_fill_the_gpu_or_half_of_it(product_of, gpu):
    assert multiprocessors(gpu).count == 132
    assert shares(product_of(64, 512, 4608), gpu) == [8, 16], "of eight tiles"
    assert shares(product_of(1024, 1024, 1024), gpu) == [], "it fills the GPU as it is"
    assert shares(product_of(64, 64, 100), gpu) == [], "a share would be short"


def test_on_a_cpu_no_sum_is_split(product_of, target):
    assert split_schedules(product_of(64, 512, 4608), target) == []


def test_a_sum_that_is_split_is_in_the_search_space_of_products_and_of_convolutions(product_of, late_layer, gpu):
    for program in product_of(64, 512, 4608), product_of(64, 512, 4608, "float16"), late_layer:
        traces = [plain_trace(schedule.trace) for schedule in design_space(program, gpu)]
        split = [any(item[0] == "RFactor" for item in trace[0]) for trace in traces]
        assert (sum(split), len(split)) in ((4, 6), (2, 3), (6, 9)), "as many for either number of shares"
        for trace in traces:
            check_trace(trace)


def test_a_split_sum_is_two_kernels_with_what_follows_in_the_second(late_layer, gpu):
    schedules = split_schedules(late_layer, gpu)
    assert schedules
    for schedule in schedules:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        assert [str(schedule.get(block).name_hint) for block in blocks] == [
            "pad_temp",
            "conv2d_nhwc_rf",
            "conv2d_nhwc",
            "compute",
        ]


def test_the_loop_nest_of_partial_sums_is_that_of_the_split_program(late_layer, gpu):
    nests = NestFeatures(late_layer, gpu)
    sketches = (nests.sketch(instructions) for instructions, _ in Knobs(late_layer, gpu).sketches())
    split = {sketch.split[1]: sketch.einsum(late_layer) for sketch in sketches if sketch and sketch.split}
    schedules = split_schedules(late_layer, gpu)
    assert schedules
    for schedule in schedules:
        wanted = Einsum.of(schedule.mod, "conv2d_nhwc_rf")
        einsum = split[int(wanted.extents[0])]
        assert (einsum.spatial, einsum.reduction) == (wanted.spatial, wanted.reduction)
        assert np.array_equal(einsum.extents, wanted.extents)
        for ours, theirs in zip(einsum.accesses, wanted.accesses, strict=True):
            assert np.array_equal(ours, theirs)


def test_what_is_estimated_to_be_fastest_splits_the_sum_and_has_more_blocks(product_of, gpu):
    """Of 4000 random configurations."""
    knobs = Knobs(product_of(64, 512, 4608), gpu)
    score = estimate(knobs)
    assert score is not None
    rng = np.random.default_rng(1)
    drawn = np.stack([rng.integers([len(knob.values) for knob in knobs.space.knobs]) for _ in range(4000)])
    best = drawn[np.argmax(score(drawn))]
    instructions, places = knobs.sketches()[best[0]]
    nests = NestFeatures(knobs.program, gpu)
    sketch = nests.sketch(instructions)
    assert sketch is not None and sketch.split is not None
    decisions = [np.array([knobs.space.knobs[place].values[best[place]]], float) for place in places]
    assert Occupancy.of(nests.nests(sketch, decisions), GpuLimits.of(gpu)).blocks[0] >= multiprocessors(gpu).count / 2
