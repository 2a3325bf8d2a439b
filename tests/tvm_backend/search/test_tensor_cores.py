"""An estimate of kernels on tensor cores: what it reads of a sketch, and what it tells apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune import strategies
from autotune.strategies import samplers
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.design_space import before_postprocessing
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.occupancy import GpuLimits
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.scores import estimate
from autotune.tvm_backend.search.tensor_cores import TensorNests, TensorSketch, tensor_throughput
from autotune.tvm_backend.target import resolve_target, tvm_target

EXTENTS = (1024 * 1024, 1024)


LOGGED = [json.loads(line) for line in (Path(__file__).parents[2] / "data/trials_with_wmma.jsonl").open()]


@pytest.fixture(scope="module")
def turing():
    """A GPU whose tensor cores have no pipeline."""
    load_tvm("cuda")
    return tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_75"}', 1).description)


@pytest.fixture(scope="module")
def knobs(product_of, turing):
    return Knobs(product_of(1024, 1024, 1024, "float16"), turing)


def read(knobs):
    return [sketch for instructions, _ in knobs.sketches() if (sketch := TensorSketch.read(instructions))]


def test_each_sketch_says_what_it_multiplies_at_once(knobs):
    assert {(item.fragments.columns, item.ahead, item.shares) for item in read(knobs)} == {(16, 0, 1)}


def test_a_logged_trial_says_what_it_multiplies_and_how_far_it_copies_ahead():
    made = [TensorSketch.read(before_postprocessing(item["trace"])) for item in LOGGED]
    assert [(item.fragments.columns, item.fragments.terms, item.fragments.size) for item in made] == [
        (16, 16, 2),
        (16, 16, 2),
        (16, 8, 4),
        (8, 8, 2),
    ]
    assert {item.ahead for item in made} <= {1, 2, 3}


def test_a_sketch_whose_sum_is_shared_says_by_how_many_blocks(product_of, turing):
    assert {item.shares for item in read(Knobs(product_of(64, 512, 4608, "float16"), turing))} == {1, 2, 4}


def test_a_kernel_without_tensor_cores_has_no_such_sketch(product_of, gpu):
    assert read(Knobs(product_of(64, 64, 128), gpu)) == []


@pytest.fixture(scope="module")
def judged(knobs, gpu):
    """Judges so many times the tiles of rows, columns and terms in fragments on an H100, with the widest copies."""

    def judge(rows, columns, terms, ahead=0, width=3, times=1):
        sketch = replace(read(knobs)[0], ahead=ahead)
        decisions = [np.zeros(1)] * 16
        for place, tile in zip(sketch.tiles, (rows, columns, terms), strict=True):
            assert np.prod(tile) == 64
            decisions[place] = np.array([tile], dtype=np.float64)
        for place, _ in sketch.widths:
            decisions[place] = np.array([float(width)])
        nests = TensorNests.of(sketch, decisions, EXTENTS)
        nests = replace(nests, blocks=times * nests.blocks)
        return float(tensor_throughput(nests, EXTENTS, GpuLimits.of(gpu))[0])

    return judge


GOOD = ((16, 1, 2, 2, 1), (16, 1, 2, 2, 1), (16, 4, 1))  # 256 blocks of 4 warps with 4 fragments each


def test_one_block_is_worse_than_as_many_as_fill_the_gpu(judged):
    assert judged((1, 1, 8, 8, 1), (16, 4, 1, 1, 1), (16, 4, 1)) < judged(*GOOD) / 2


def test_sums_that_do_not_fit_into_registers_are_worse(judged):
    assert judged((8, 1, 1, 8, 1), (8, 1, 1, 8, 1), (16, 4, 1)) < judged(*GOOD) / 4


def test_the_more_warps_a_block_has_the_fewer_sums_fit_into_registers(judged):
    few = judged((8, 1, 2, 4, 1), (8, 1, 4, 2, 1), (16, 4, 1))
    many = judged((2, 1, 8, 4, 1), (8, 1, 4, 2, 1), (16, 4, 1))
    assert many < few / 2, "64 sums of each of 1,024 threads, which may have 64 registers"


def test_wide_copies_and_copies_ahead_are_better(judged):
    few = ((16, 1, 1, 4, 1), (8, 1, 2, 4, 1), (16, 4, 1))  # a block for each multiprocessor, which waits for itself
    assert judged(*few, width=0) < judged(*few) < judged(*few, ahead=1)


def test_a_second_block_computes_while_the_first_one_waits(judged):
    few = ((16, 1, 1, 4, 1), (8, 1, 2, 4, 1), (16, 4, 1))
    assert judged(*few, times=2) > 0.9 * judged(*few)


def test_what_no_multiprocessor_has_room_for_is_worst(judged):
    assert judged((1, 1, 8, 2, 4), (1, 1, 8, 2, 4), (1, 64, 1), ahead=3) < 1e-6
    assert judged((1, 1, 64, 1, 1), (64, 1, 1, 1, 1), (16, 4, 1)) < 1e-6, "64 warps"


def test_the_first_batch_has_four_different_tilings(knobs):
    request = Request((), (), 4, None, 1)
    proposed = propose(knobs, strategies.get("beam"), samplers.make("greedy", 0.0, True), request).candidates
    chosen = [knobs.find(item.trace) for item in proposed]
    tiled = {(item[0], *(item[place] for place in _tiles(knobs, item[0]))) for item in chosen}
    assert len(tiled) == 4
    score = estimate(knobs)
    assert score is not None
    drawn = score(knobs.space.sample(np.random.default_rng(1), 1024))
    assert score(np.array(chosen)).min() > np.quantile(drawn, 0.9)


def _tiles(knobs, sketch):
    places = knobs.sketches()[sketch][1]
    return [place for place in places if knobs.space.knobs[place].name.startswith("tile")]
