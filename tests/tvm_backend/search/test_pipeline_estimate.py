"""What an estimate of a pipeline reads of its sketch, and what it tells apart."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

from autotune import strategies
from autotune.strategies import samplers
from autotune.strategies.space import Measured
from autotune.tvm_backend.cuda.pipeline_tiles import Tiles
from autotune.tvm_backend.cuda.tensor_pipeline import marked
from autotune.tvm_backend.search.knob_score import KnobScore
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.occupancy import HOPELESS, GpuLimits
from autotune.tvm_backend.search.pipeline_estimate import PipelineSketch, ProductExtents
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.scores import estimate
from autotune.tvm_backend.search.tensor_cores import tensor_throughput

EXTENTS = (1024 * 1024, 1024)


@pytest.fixture(scope="module")
def knobs(product_of, gpu):
    return Knobs(product_of(1024, 1024, 1024, "float16"), gpu)


@pytest.fixture(scope="module")
def sketch(knobs):
    ((instructions, _),) = knobs.sketches()
    return PipelineSketch.read(instructions)


def nests(sketch, knobs, **sizes):
    """The tiles of a candidate."""
    decisions = [np.zeros(1)] * 12
    for name, size in sizes.items():
        place, values = sketch.sampled[name]
        decisions[place] = np.array([float(values.index(size))])
    return sketch.nests(decisions, ProductExtents.read(knobs.program))


def judged(sketch, knobs, **sizes):
    (speed,) = tensor_throughput(nests(sketch, knobs, **sizes), EXTENTS, GpuLimits.of(knobs.target))
    return speed


GOOD = {"rows": 128, "pieces": 32, "threads": 256, "steps": 2, "stages": 4}


def test_a_program_says_which_matrices_are_multiplied(product_of, as_program):
    made = ProductExtents.read(product_of(64, 32, 128, "float16"))
    assert made is not None
    assert (made.element.name, made.batch, made.rows, made.columns, made.terms) == ("Fp16", 1, 64, 32, 128)
    x = te.placeholder((2, 9, 9, 16), "float16", name="x")
    w = te.placeholder((32, 3, 3, 16), "float16", name="w")
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "float32"}
    image = ProductExtents.read(as_program(x, w, topi.nn.conv2d(x, w, 1, 1, 1, **layouts)))
    assert image is not None
    assert (image.rows, image.columns, image.terms) == (2 * 9 * 9, 32, 9 * 16)
    assert ProductExtents.read(as_program(x, topi.nn.relu(x))) is None


def test_the_tiles_are_those_of_the_schedule(sketch, knobs):
    applied = 0
    for row in knobs.space.sample(np.random.default_rng(1), 40).tolist():
        item = knobs.apply(tuple(row))
        if item is None:
            continue
        applied += 1
        ((_, tiles),) = marked(item.schedule.mod)
        assert isinstance(tiles, Tiles) and tiles.warps is not None
        values = {name: getattr(tiles, name) for name in sketch.sampled}
        made = nests(sketch, knobs, **values)
        down, across = tiles.warps
        assert made.rows[0] * 16 + made.columns[0] * 16 == tiles.rows / down + tiles.columns / across
        assert made.shared[0] == tiles.shared_bytes()
        assert made.blocks[0] == -(-1024 // tiles.rows) * -(-1024 // tiles.columns)
        assert made.steps[0] == 1024 / (tiles.steps * 16)
    assert applied > 10


def test_tiles_that_need_fewer_loads_are_better(sketch, knobs):
    assert judged(sketch, knobs, **GOOD) > 1.5 * judged(sketch, knobs, **{**GOOD, "rows": 32, "pieces": 8})


def test_one_stage_more_hides_the_wait_of_a_lone_block(sketch, knobs):
    alone = {"rows": 128, "pieces": 32, "threads": 128, "steps": 2}
    assert judged(sketch, knobs, **alone, stages=3) <= judged(sketch, knobs, **alone, stages=5)


def test_what_cannot_be_launched_is_hopeless(sketch, knobs):
    assert judged(sketch, knobs, **{**GOOD, "rows": 256, "pieces": 64, "threads": 64}) < HOPELESS, "1024 sums a thread"


def test_a_sum_that_is_shared_has_more_blocks_and_fewer_steps(product_of, gpu):
    split = Knobs(product_of(64, 512, 4608, "float16"), gpu)
    made = [PipelineSketch.read(instructions) for instructions, _ in split.sketches()]
    assert {item.shares for item in made} == {1, 8, 16}
    sizes = {"rows": 64, "pieces": 16, "threads": 128, "steps": 2, "stages": 3}
    whole, shared = (nests(next(item for item in made if item.shares == shares), split, **sizes) for shares in (1, 8))
    assert shared.blocks[0] == 8 * whole.blocks[0]
    assert shared.steps[0] == whole.steps[0] / 8


def test_the_first_batch_is_better_than_a_random_one(knobs):
    request = Request((), (), 4, None, 1)
    proposed = propose(knobs, strategies.get("beam"), samplers.make("greedy", 0.0, True), request).candidates
    chosen = np.array([knobs.find(item.trace) for item in proposed])
    score = estimate(knobs)
    assert score is not None
    drawn = score(knobs.space.sample(np.random.default_rng(1), 1024))
    assert score(chosen).min() > np.quantile(drawn, 0.8)


def test_trees_correct_an_estimate_where_there_are_trials_and_keep_it_elsewhere(knobs):
    score = estimate(knobs)
    rows = knobs.space.sample(np.random.default_rng(2), 400)
    exact = score(rows)
    times = [
        Measured(tuple(row), 1.0 / max(value, 1e-9)) for row, value in zip(rows[:12].tolist(), exact, strict=False)
    ]
    learnt = KnobScore(knobs.space, times, score)(rows)
    usable = exact > 1e-6
    assert np.corrcoef(np.log(learnt[usable]), np.log(exact[usable]))[0, 1] > 0.95, "the estimate was right"
    alone = KnobScore(knobs.space, times)(rows)
    assert np.corrcoef(alone[usable], np.log(exact[usable]))[0, 1] < 0.9
