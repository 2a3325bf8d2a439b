"""An analytic estimate of kernels for GPUs: what it tells apart on the candidates of a real task."""

from __future__ import annotations

import numpy as np
import pytest

from autotune import strategies
from autotune.strategies import samplers
from autotune.tvm_backend.cuda import cubin, runtime
from autotune.tvm_backend.kernels.build_kernel import build_library
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.design_space import before_postprocessing, plain_trace, sampled
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.nest import NestFeatures
from autotune.tvm_backend.search.occupancy import STRUCTURE, GpuLimits, Occupancy, gpu_throughput
from autotune.tvm_backend.search.propose import Request, propose
from autotune.tvm_backend.search.scores import estimate
from autotune.tvm_backend.target import resolve_target, tvm_target

SIZE = 1024
RESERVED = 1024  # bytes of shared memory that sm_90 keeps of each block


@pytest.fixture(scope="module")
def knobs(matmul_of):
    """A product of two matrices, on a GPU."""
    load_tvm("cuda")
    return Knobs(matmul_of(SIZE), tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_90"}', 1).description))


@pytest.fixture(scope="module")
def judged(knobs):
    """Judges a tile of each loop: two spatial ones, [blocks, virtual, threads, inner, inner], and the reduction."""
    nests = NestFeatures(knobs.program, knobs.target)
    limits = GpuLimits.of(knobs.target)
    instructions, _ = knobs.sketches()[0]
    sketch = nests.sketch(instructions)
    assert sketch is not None and sketch.structure == STRUCTURE

    def judge(rows, columns, steps):
        decisions = [np.zeros(1)] * (max(sketch.tiles.values()) + 1)
        for loop, tile in enumerate((rows, columns, steps)):
            assert np.prod(tile) == SIZE
            decisions[sketch.tiles[loop]] = np.array([tile], dtype=np.float64)
        nest = nests.nests(sketch, decisions)
        return float(gpu_throughput(nest, limits)[0]), Occupancy.of(nest, limits)

    return judge


GOOD = ((16, 1, 16, 4, 1), (16, 1, 16, 4, 1), (64, 16, 1))  # 256 blocks of 256 threads with 16 results each
ONE_THREAD = ((1, 1, 1, 1024, 1), (1024, 1, 1, 1, 1), (64, 16, 1))


def test_a_kernel_without_parallelism_is_worse_than_one_that_fills_the_gpu(judged):
    best, occupancy = judged(*GOOD)
    assert (occupancy.blocks[0], occupancy.threads[0]) == (256, 256)
    assert judged(*ONE_THREAD)[0] < best / 10
    assert judged((1, 1, 1, 32, 32), (1, 1, 32, 32, 1), (64, 16, 1))[0] < best / 10, "one block"


def test_reuse_in_registers_is_better_than_none(judged):
    wide, _ = judged(*GOOD)
    narrow, _ = judged((64, 1, 16, 1, 1), (64, 1, 16, 1, 1), (64, 16, 1))
    assert narrow < wide / 1.5


def test_what_does_not_fit_is_worse_than_all_that_does(judged):
    least, _ = judged((64, 1, 16, 1, 1), (64, 1, 16, 1, 1), (64, 16, 1))
    too_many_threads = judged((16, 1, 64, 1, 1), (16, 1, 64, 1, 1), (64, 16, 1))
    too_much_shared = judged(*GOOD[:2], (8, 128, 1))
    too_many_registers = judged((4, 1, 16, 16, 1), (4, 1, 16, 16, 1), (128, 8, 1))
    for score, occupancy in (too_many_threads, too_much_shared, too_many_registers):
        assert occupancy.together[0] == 0 and score < least
    assert too_much_shared[1].shared[0] == 64 << 10, "a multiprocessor has more, but no block may have it"


@pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")
def test_the_shared_memory_is_what_the_compiler_reserves(knobs, tmp_path):
    nests = NestFeatures(knobs.program, knobs.target)
    limits = GpuLimits.of(knobs.target)
    pipelined = next(at for at, (lines, _) in enumerate(knobs.sketches()) if "software_pipeline_stage" in str(lines))
    drawn = (tuple(row) for row in knobs.space.sample(np.random.default_rng(1), 400).tolist())
    applied = next(filter(None, (knobs.apply((pipelined, *row[1:])) for row in drawn)))
    build_library(applied.schedule.mod, knobs.target, tmp_path / "kernel.so")
    ((kernel,),) = (item.kernels for item in cubin.find((tmp_path / "kernel.so").read_bytes()))
    trace = plain_trace(applied.schedule.trace)
    sketch = nests.sketch(before_postprocessing(trace))
    assert sketch is not None and sketch.copies > 1
    nest = nests.nests(sketch, [np.array([item], dtype=np.float64) for item in sampled(trace)])
    assert Occupancy.of(nest, limits).shared[0] + RESERVED == kernel.shared_bytes


def test_a_warp_that_is_not_full_is_wasted(judged):
    assert (
        judged((128, 1, 8, 1, 1), (512, 1, 2, 1, 1), (64, 16, 1))[0]
        < judged((128, 1, 8, 1, 1), (64, 1, 16, 1, 1), (64, 16, 1))[0]
    )


def test_the_first_batch_is_better_than_a_random_one_and_takes_few_replays(knobs):
    score = estimate(knobs)
    assert score is not None
    rng = np.random.default_rng(1)
    drawn = knobs.space.sample(rng, 1024)
    scores = score(drawn)
    request = Request((), (), 4, None, 1)
    proposed = propose(knobs, strategies.get("beam"), samplers.make("greedy", 0.0, True), request)
    assert len(proposed.candidates) == 4 and proposed.replayed < 64, "replays take milliseconds"
    chosen = score(np.array([knobs.find(item.trace) for item in proposed.candidates]))
    assert chosen.min() > np.quantile(scores, 0.99)


def test_a_cpu_has_no_such_estimate(matmul_of, target):
    assert estimate(Knobs(matmul_of(64), target)) is None


def test_the_limits_are_those_of_the_target(knobs):
    limits = GpuLimits.of(knobs.target)
    assert (limits.max_threads, limits.max_shared, limits.chip.count) == (1024, 49152, 132)
