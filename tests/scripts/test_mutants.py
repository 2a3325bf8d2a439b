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


OF_ATTENTION = SOURCE + "// autotune::attention::"


def test_every_change_is_one_of_the_pipeline_or_of_attention(script):
    for source, kinds in (SOURCE, script._OF_PRODUCTS), (OF_ATTENTION, script._OF_ATTENTION):
        completed = compiler.completed(source)
        assert [old for changes in kinds.values() for old, _ in changes if old not in completed] == []


def test_a_mutant_of_attention_leaves_the_pipeline_as_it_is(script):
    source = compiler.completed(OF_ATTENTION)
    begun = source.index("namespace attention {")
    made = [item for seed in range(20) for item in script.mutants(source, random.Random(seed))]
    assert {item.kind for item in made} == {"a barrier less", *script._OF_ATTENTION}
    assert all(item.source[:begun] == source[:begun] and item.source != source for item in made)


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
