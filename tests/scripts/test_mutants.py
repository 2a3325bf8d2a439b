"""Wrong kernels that checks should find: what is changed, and that it is in the source which they change."""

from __future__ import annotations

import random

import pytest

from autotune.tvm_backend.cuda import compiler

# With two barriers, one of them in a kernel of one warp.
SOURCE = """
__global__ void __launch_bounds__(128, 1) f() { autotune::pipeline::Pipeline<>(); __syncthreads(); }
__global__ void __launch_bounds__(32) g() { __syncthreads(); }
"""


@pytest.fixture
def script(load_script):
    return load_script("mutants")


def test_every_change_is_one_of_the_pipeline(script):
    source = compiler.completed(SOURCE)
    missing = [old for changes in script._CHANGES.values() for old, _ in changes if old not in source]
    assert missing == []


def test_one_mutant_of_each_kind_differs_from_the_source(script):
    source = compiler.completed(SOURCE)
    made = script.mutants(source, random.Random(1))
    assert [item.kind for item in made] == ["a barrier less", "a stage less", "an address off by one"]
    assert all(item.source != source for item in made)
    assert made[0].source.count("__syncthreads();") == source.count("__syncthreads();") - 1


def test_a_warp_alone_needs_no_barrier(script):
    kernel = SOURCE.splitlines()[2]
    assert script.threads(kernel, kernel.index("__syncthreads")) == 32
    assert script.mutants(kernel, random.Random(1)) == []
