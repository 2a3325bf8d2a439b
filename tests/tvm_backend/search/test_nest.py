"""Features of loop nests: read off traces, the same for a configuration as for its trace, and true of the program."""

from __future__ import annotations

import json

import numpy as np
import pytest

from autotune.strategies.space import as_array
from autotune.tvm_backend.search.cost_model import prior
from autotune.tvm_backend.search.design_space import plain_trace
from autotune.tvm_backend.search.features import WIDTH, FeatureExtractor
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import COLUMNS, NestFeatures
from autotune.tvm_backend.search.nest import WIDTH as NEST
from autotune.tvm_backend.search.scores import nest_score
from autotune.tvm_backend.search.tiled_block import Einsum, TiledSketch

SIZE = 64


@pytest.fixture(scope="module")
def matmul(matmul_of):
    return matmul_of(SIZE)


@pytest.fixture(scope="module")
def strided(as_program):
    """A convolution in one dimension with a stride of 2."""
    from tvm import te

    data = te.placeholder((16, 66), name="data")
    weight = te.placeholder((32, 16, 3), name="weight")
    channel = te.reduce_axis((0, 16), "channel")
    tap = te.reduce_axis((0, 3), "tap")
    product = lambda f, x: te.sum(data[channel, 2 * x + tap] * weight[f, channel, tap], [channel, tap])  # noqa: E731
    return as_program(data, weight, te.compute((32, 32), product, name="c"))


@pytest.fixture(scope="module")
def padded(as_program):
    """A convolution whose padding can be computed anywhere in its nest, and a sum that can be fused into it."""
    from tvm import te, tirx

    data = te.placeholder((16, 32), name="data")
    weight = te.placeholder((32, 16, 3), name="weight")
    padding = lambda c, x: tirx.if_then_else(tirx.all(x > 0, x < 33), data[c, x - 1], 0.0)  # noqa: E731
    wide = te.compute((16, 34), padding, name="pad")
    channel = te.reduce_axis((0, 16), "channel")
    tap = te.reduce_axis((0, 3), "tap")
    product = lambda f, x: te.sum(wide[channel, x + tap] * weight[f, channel, tap], [channel, tap])  # noqa: E731
    conv = te.compute((32, 32), product, name="c")
    return as_program(data, weight, te.compute((32, 32), lambda f, x: conv[f, x] + 1.0, name="sum"))


@pytest.fixture(scope="module")
def knobs(matmul, target):
    return Knobs(matmul, target)


def tiled(knobs, target, *tiles, unroll=0):
    """Features of the matmul with these tiles of i, j and k, by name of what they say."""
    nests = NestFeatures(knobs.program, target)
    instructions, places = knobs.sketches()[0]
    sketch = nests.sketch(instructions)
    assert sketch is not None and sketch.structure == "SSRSRS"
    decisions = [np.array([tile], float) for tile in tiles]
    decisions += [np.array([unroll], float)] * (len(places) - len(decisions))
    return nests.rows(sketch, decisions)[0]


def test_an_einsum_knows_its_loops_and_how_buffers_depend_on_them(strided):
    einsum = Einsum.of(strided, "c")
    assert (einsum.spatial, einsum.reduction, einsum.extents.tolist()) == ((0, 1), (2, 3), [32, 32, 16, 3])
    data, weight, written = (access.tolist() for access in einsum.accesses)
    assert data == [[0, 0, 1, 0], [0, 2, 0, 1]]
    assert weight == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert written == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_a_pixel_of_a_row_is_a_step_in_the_columns_of_its_image(as_program):
    from tvm import te, tirx

    image = te.placeholder((6, 5, 8))
    weight = te.placeholder((8, 16))
    rest = te.reduce_axis((0, 8))
    at = lambda pixel: (tirx.min(pixel, 29) // 5, tirx.min(pixel, 29) % 5)  # noqa: E731
    sums = te.compute((32, 16), lambda p, o: te.sum(image[(*at(p), rest)] * weight[rest, o], axis=rest), name="c")
    data, *_ = Einsum.of(as_program(image, weight, sums), "c").accesses
    assert data.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1]]


def test_the_innermost_level_says_how_much_it_touches(knobs, target):
    row = tiled(knobs, target, [1, 1, 16, 4], [1, 1, 4, 16], [64, 1])
    extent, iterations, first, reuse, _, _, _, run, written, reuse_of_written, _, touched = 2 ** row[:12]
    assert (extent, iterations) == (64, 64)
    assert (first, reuse) == (16, 4)  # of b a row of 16, each element used for 4 rows of a
    assert run == pytest.approx(1)  # of a one column
    assert (written, reuse_of_written) == (64, 1)
    assert touched == pytest.approx(16 + 4 + 64)


def test_a_wider_reduction_reuses_what_is_written(knobs, target):
    narrow, wide = (tiled(knobs, target, [1, 1, 16, 4], [1, 1, 4, 16], tile) for tile in ([64, 1], [4, 16]))
    assert 2 ** (wide[12 + 9] - narrow[12 + 9]) == pytest.approx(16)


def test_what_is_unrolled_counts_from_inside(knobs, target):
    rows = [tiled(knobs, target, [1, 1, 16, 4], [1, 1, 4, 16], [64, 1], unroll=at) for at in range(4)]
    unroll = [row[8 * 12 + 4 * 5] for row in rows]
    assert [2**value for value in unroll[1:]] == [16, 64, 512] and unroll[0] < -9


@pytest.mark.parametrize(("mcpu", "row", "there"), [("znver3", 2, 16), ("skylake-avx512", 1, 32)])
def test_a_tile_asks_for_registers_for_its_results_a_row_and_a_broadcast(knobs, mcpu, row, there):
    import tvm

    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    facts = dict(zip(COLUMNS, tiled(knobs, target, [1, 1, 16, 4], [1, 1, 4, 16], [64, 1]), strict=True))
    results = facts["result_registers"]
    asked = facts["register_pressure"]
    assert 2**results == pytest.approx(4 * row)
    assert 2**asked == pytest.approx((4 * row + row + 1) / there)


@pytest.mark.parametrize("name", ["matmul", "padded"])
def test_the_pieces_are_those_of_the_scheduled_program(request, target, name):
    """TVM decides itself which loops it runs in parallel."""
    knobs = Knobs(request.getfixturevalue(name), target)
    nests = NestFeatures(knobs.program, target)
    rows = []
    extents = []
    for configuration in knobs.space.sample(np.random.default_rng(2), 40).tolist():
        applied = knobs.apply(tuple(configuration))
        if applied is not None:
            (row,) = nests.of_traces([json.loads(json.dumps(plain_trace(applied.schedule.trace)))])
            rows.append(2 ** row[0][8 * 12 + 4 * 5 + 9])
            extents.append(parallel_extent(applied.schedule, knobs.sketches()[configuration[0]][0]))
    assert len(rows) > 20 and len(set(rows)) > 5
    np.testing.assert_allclose(rows, extents, rtol=1e-5)


def test_a_producer_computes_as_much_as_in_the_scheduled_program(padded, target):
    """TVM decides itself which part of the padding each step of the convolution needs."""
    knobs = Knobs(padded, target)
    nests = NestFeatures(padded, target)
    work = COLUMNS.index("producer0_work")
    steps = 32 * 32 * 16 * 3
    computed = []
    scheduled = []
    for configuration in knobs.space.sample(np.random.default_rng(3), 60).tolist():
        applied = knobs.apply(tuple(configuration))
        if applied is not None and has(applied.schedule, "pad"):
            (row,) = nests.of_traces([json.loads(json.dumps(plain_trace(applied.schedule.trace)))])
            computed.append(2 ** row[0][work] * steps)
            loops = applied.schedule.get_loops(applied.schedule.get_sblock("pad"))
            scheduled.append(np.prod([int(applied.schedule.get(loop).extent) for loop in loops]))
    assert len(scheduled) > 20 and max(scheduled) > 10 * min(scheduled)
    np.testing.assert_allclose(computed, scheduled, rtol=1e-5)


def test_a_producer_that_is_inlined_is_computed_in_each_step(padded, target):
    knobs = Knobs(padded, target)
    nests = NestFeatures(padded, target)
    instructions, places = knobs.sketches()[0]
    sketch = nests.sketch(instructions)
    drawn = as_array([next(iter(knobs.space))], len(knobs.space.knobs))[:, list(places)][0]
    pairs = zip(places, drawn, strict=True)
    decisions = [np.array([knobs.space.knobs[place].values[index]], float) for place, index in pairs]
    decisions[next(iter(sketch.locations))] = np.array([-2.0])
    facts = dict(zip(COLUMNS, nests.rows(sketch, decisions)[0], strict=True))
    assert [facts[f"producer0_{name}"] for name in ("work", "elements", "run")] == [0, 0, 0]


def parallel_extent(schedule, instructions):
    from tvm import tirx

    block = TiledSketch.read(instructions).block
    names = [name for name in (block, f"{block}_global", f"{block}_update") if has(schedule, name)]
    for loop in schedule.get_loops(schedule.get_sblock(names[-1])):
        if schedule.get(loop).kind == tirx.ForKind.PARALLEL:
            return int(schedule.get(loop).extent)
    return 1


def has(schedule, block):
    return f'T.sblock("{block}")' in schedule.mod.script()


@pytest.mark.parametrize("name", ["matmul", "strided", "padded"])
def test_a_configuration_has_the_features_of_its_trace(request, target, name):
    knobs = Knobs(request.getfixturevalue(name), target)
    model = prior("llvm")
    assert model is not None
    score = nest_score(knobs, model)
    assert score is not None
    applied = [knobs.apply(tuple(row)) for row in knobs.space.sample(np.random.default_rng(1), 20).tolist()]
    applied = [item for item in applied if item is not None]
    traces = [json.loads(json.dumps(plain_trace(item.schedule.trace))) for item in applied]
    rows = [row for row in NestFeatures(knobs.program, target).of_traces(traces) if row is not None]
    assert len(rows) == len(applied) > 10
    wide = [np.concatenate([row, np.full((1, WIDTH - NEST), np.nan, np.float32)], axis=1) for row in rows]
    scores = score(np.array([item.configuration for item in applied]))
    np.testing.assert_allclose(scores, model.score(wide), rtol=1e-5)
    assert scores.std() > 0.01


@pytest.fixture(scope="module")
def mean(as_program):
    from tvm import te

    a = te.placeholder((16, 49), name="a")
    k = te.reduce_axis((0, 49), "k")
    return as_program(a, te.compute((16,), lambda i: te.sum(a[i, k], k), name="c"))


class TestWithoutATiledBlock:
    def test_a_trace_has_none(self, mean, target):
        nests = NestFeatures(mean, target)
        knobs = Knobs(mean, target)
        assert [nests.sketch(instructions) for instructions, _ in knobs.sketches()] == [None] * len(knobs.sketches())
        assert nest_score(knobs, prior("llvm")) is None

    def test_a_candidate_has_those_of_its_stores(self, mean, target):
        from tvm.s_tir.meta_schedule import MeasureCandidate

        knobs = Knobs(mean, target)
        applied = knobs.apply(tuple(knobs.space.clip(np.zeros((1, len(knobs.space.knobs)), int))[0].tolist()))
        assert applied is not None
        (rows,) = FeatureExtractor(mean, target).of_candidates([MeasureCandidate(applied.schedule, [])])
        assert rows.shape[1] == WIDTH and len(rows) >= 1
        assert np.isnan(rows[:, :NEST]).all() and np.isfinite(rows[:, NEST:]).all()


def test_a_block_whose_loops_are_not_all_tiled_is_not_understood(knobs, target):
    instructions, _ = knobs.sketches()[0]
    first = next(at for at, item in enumerate(instructions) if item[0] == "SamplePerfectTile")
    sketch = TiledSketch.read(instructions[:first] + instructions[first + 1 :])
    assert sketch is not None and set(sketch.tiles) == {1, 2}
    assert NestFeatures(knobs.program, target).sketch(instructions[:first] + instructions[first + 1 :]) is None


STRANGE = {
    "another structure": ("Annotate", lambda inputs, *_: inputs.__setitem__(1, '"RSSRSS"')),
    "letters that are no levels": ("Annotate", lambda inputs, *_: inputs.__setitem__(1, '"SSQSRS"')),
    "fewer levels": ("Annotate", lambda inputs, *_: inputs.__setitem__(1, '"SRS"')),
    "no such block": ("GetSBlock", lambda _, attributes, __: attributes.__setitem__(0, "unheard")),
    "other parts": ("SamplePerfectTile", lambda _, attributes, outputs: (attributes.__setitem__(0, 2), outputs.pop())),
}


@pytest.mark.parametrize("name", STRANGE)
def test_the_loops_of_a_trace_that_no_rule_makes_are_not_understood(knobs, target, name):
    """Whoever writes a file of trials writes its traces."""
    kind, change = STRANGE[name]
    instructions = json.loads(json.dumps(knobs.sketches()[0][0]))
    for item in instructions:
        if item[0] == kind and (kind != "Annotate" or item[2] == ["meta_schedule.tiling_structure"]):
            change(*item[1:])
    assert NestFeatures(knobs.program, target).sketch(instructions) is None


def test_the_loops_of_a_trace_with_sizes_beyond_all_numbers_are_not_understood(knobs, target):
    applied = knobs.apply(tuple(knobs.space.sample(np.random.default_rng(1), 1).tolist()[0]))
    trace = json.loads(json.dumps(plain_trace(applied.schedule.trace)))
    nests = NestFeatures(knobs.program, target)
    assert nests.of_traces([trace])[0] is not None
    trace[1] = [[at, [2**200] * len(decision) if isinstance(decision, list) else decision] for at, decision in trace[1]]
    assert nests.of_traces([trace])[0] is None


def test_what_is_decided_after_the_search_is_no_part_of_a_nest(knobs, target):
    applied = knobs.apply(tuple(knobs.space.sample(np.random.default_rng(1), 1).tolist()[0]))
    trace = json.loads(json.dumps(plain_trace(applied.schedule.trace)))
    later = [["EnterPostproc", [], [], []], ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v999"]]]
    postprocessed = [[*trace[0], *later], [*trace[1], [len(trace[0]) + 1, 0]]]
    one, other = NestFeatures(knobs.program, target).of_traces([trace, postprocessed])
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stages", [[], [-5]])
def test_a_pipeline_without_stages_keeps_one_copy(knobs, stages):
    instructions, _ = knobs.sketches()[0]
    block = next(item[1][0] for item in instructions if item[2] == ["meta_schedule.tiling_structure"])
    pipeline = ["Annotate", [block, stages], ["software_pipeline_stage"], []]
    assert TiledSketch.read([*instructions, pipeline]).copies >= 1
