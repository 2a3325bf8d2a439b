"""Weights that a kernel needs next are fetched while it uses the current ones again."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from autotune.tvm_backend.codegen import lowering_passes
from autotune.tvm_backend.codegen.prefetch import Index

PIXELS = 6
BLOCKS = 5
DEPTH = 8
LANES = 16
LINES = BLOCKS * DEPTH
TARGET = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"})


def product(*order: str, fused: int = 0):
    """A product with packed weights, in this order of loops, of which the first `fused` are one."""
    x = te.placeholder((PIXELS, DEPTH), name="x")
    w = te.placeholder((BLOCKS, DEPTH, LANES), name="w")
    k = te.reduce_axis((0, DEPTH), name="k")
    y = te.compute((BLOCKS, PIXELS, LANES), lambda o, p, j: te.sum(x[p, k] * w[o, k, j], axis=k), name="y")
    schedule = Schedule(te.create_prim_func([x, w, y]).with_attr("global_symbol", "main"))
    block = schedule.get_sblock("y")
    loops = dict(zip("opjk", schedule.get_loops(block), strict=True))
    schedule.reorder(*(loops[name] for name in order), loops["j"])
    schedule.vectorize(loops["j"])
    if fused:
        schedule.fuse(*(loops[name] for name in order[:fused]))
    schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    return schedule.mod


def lowered(module):
    """The module with prefetches, and how often each line of the weights is fetched in a run."""
    with TARGET:
        passes, *_ = tvm.tirx.get_tir_pipeline(lowering_passes.pipeline(TARGET))
        after = passes(tvm.tirx.transform.BindTarget(TARGET.with_host(TARGET))(module))
    (function,) = after.functions.values()
    return after, Counter(fetched(function.body, {}, {}))


def fetched(node, at, values):
    """Walk through a program as it would run, and yield the lines that it fetches."""
    kind = type(node).__name__
    if kind == "For":
        for value in range(int(node.extent)):
            yield from fetched(node.body, {**at, node.loop_var: value}, values)
    elif kind == "SeqStmt":
        for item in node.seq:
            yield from fetched(item, at, values)
    elif kind == "Bind":
        values[node.var] = node.value
    elif kind == "Evaluate" and "autotune_prefetch" in str(node):
        address = next(item for item in node.value.args if type(item).__name__ == "Call")
        yield Index.read(address.args[0].indices[0], values).value(at) // LANES
    elif hasattr(node, "body"):
        yield from fetched(node.body, at, values)


@pytest.mark.parametrize(("order", "fused"), [("opk", 0), ("opk", 2)])
def test_each_line_is_fetched_while_the_block_before_it_is_used(order, fused):
    _, fetches = lowered(product(*order, fused=fused))
    assert set(fetches) >= set(range(DEPTH, LINES)), "all but the first block"
    assert max(fetches) < LINES + 2 * DEPTH, "no more than a block behind the last, which no address needs to have"
    assert max(fetches.values()) <= 2


@pytest.mark.parametrize("order", ["pok", "pko"])
def test_weights_that_every_pass_reads_to_the_end_are_not_fetched(order):
    _, fetches = lowered(product(*order))
    assert not fetches


@pytest.mark.parametrize("order", ["".join(order) for order in itertools.permutations("opk")])
def test_a_product_with_prefetches_computes_the_same_and_calls_nothing(order):
    module = product(*order)
    random = np.random.default_rng(0)
    x = random.standard_normal((PIXELS, DEPTH)).astype(np.float32)
    w = random.standard_normal((BLOCKS, DEPTH, LANES)).astype(np.float32)
    outputs = []
    for pipeline in ("default", lowering_passes.pipeline(TARGET)):
        built = tvm.tirx.build(module, TARGET, pipeline)
        if tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"):
            y = tvm.runtime.tensor(np.zeros((BLOCKS, PIXELS, LANES), np.float32))
            built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w), y)
            outputs.append(y.numpy())
        assert "autotune_prefetch" not in built.inspect_source("asm")
    assert all(np.array_equal(item, outputs[0]) for item in outputs)


def test_the_instruction_that_prefetches_is_in_the_code():
    built = tvm.tirx.build(product("o", "p", "k"), TARGET, lowering_passes.pipeline(TARGET))
    assert "prefetcht1" in built.inspect_source("asm")


def test_a_gpu_has_passes_of_its_own():
    assert lowering_passes.pipeline(tvm.target.Target({"kind": "cuda", "arch": "sm_90"})) == "autotune-cuda"


def test_a_cpu_of_another_architecture_gets_no_prefetches():
    board = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    built = tvm.tirx.build(product("o", "p", "k"), board, lowering_passes.pipeline(board))
    assert "prfm" not in built.inspect_source("asm")
