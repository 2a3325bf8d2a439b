"""The CUDA C of a kernel with a pipeline, and what `pipeline.cuh` has for it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from autotune.tvm_backend.cuda import compiler
from autotune.tvm_backend.cuda.pipeline_code import source_of, source_of_results
from autotune.tvm_backend.cuda.pipeline_tiles import Tiles
from autotune.tvm_backend.cuda.products import product_of

from ...cuda_stand_in.on_cpu import image
from ...cuda_stand_in.on_cpu.launch import FINE, KERNEL, launch

TILES = Tiles(rows=64, pieces=8, vector=8, threads=128, steps=2, stages=3)


@pytest.fixture(scope="module")
def product():
    """A product of 70 rows, 48 terms and 64 columns."""
    a = te.placeholder((70, 48), "float16", name="a")
    b = te.placeholder((48, 64), "float16", name="b")
    k = te.reduce_axis((0, 48), "k")
    element = lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k)  # noqa: E731
    schedule = Schedule(te.create_prim_func([a, b, te.compute((70, 64), element, "c")]))
    return product_of(schedule.get(schedule.get_sblock("c")))


def test_only_what_reaches_beyond_the_product_is_checked(product):
    _, code = source_of(product, TILES)
    inside = re.findall(r"bool inside.* return (.*?);", code)
    assert inside == ["side < 70 && term < 48", "term < 48"]
    whole = replace(product, extents={**product.extents, "row": 128, "term": 96})
    assert re.findall(r"bool inside.* return (.*?);", source_of(whole, TILES)[1]) == ["true", "true"]


def test_offsets_are_wide_where_a_tensor_has_more_elements_than_an_int_counts(product):
    assert "int offset(int side, int term) const { return ((side * 48) + term); }" in source_of(product, TILES)[1]
    large = replace(product.a, tensor=te.placeholder((1 << 16, 1 << 16), "float16"))
    assert "long long offset(long long side" in source_of(replace(product, a=large), TILES)[1]


def test_equal_code_has_one_name(product):
    name, code = source_of(product, TILES)
    assert (name, code) == source_of(product, TILES)
    assert name != source_of(product, replace(TILES, stages=4))[0]
    assert f"void {name}(" in code


def test_results_are_taken_as_what_they_are():
    name, code = source_of_results(TILES, 8, "int32")
    assert f"void {name}(int* results" in code and "take<64, 8>" in code


# Where lanes touch shared memory, in bytes: as they copy, load a step, store results, and take four or eight of them.
# Each line of 32 numbers is one access of a warp.
PLACES = """
namespace autotune {
namespace pipeline {
template <class Element, bool BY_TERMS, int STEPS, int SIDE = 64>
__device__ int* of_operand(int* at) {
  using Of = Tile<Element, SIDE, STEPS, BY_TERMS>;
  for (int first = 0; first < Of::LINES * Of::PIECES; first += LANES, at += LANES)
    at[lane()] = Of::place((first + lane()) / Of::PIECES, (first + lane()) % Of::PIECES);
  return at;
}
template <class Element, bool BY_TERMS, int STEPS, int SIDE = 64>
__device__ int* of_fragments(int* at) {
  using Of = Tile<Element, SIDE, STEPS, BY_TERMS>;
  for (int i = 0; i < STEPS; ++i, at += 2 * LANES) {
    int step = BY_TERMS ? i * INSTRUCTION : 0;
    at[lane()] = Of::template begin<true>(16) ^ step;
    at[lane() + LANES] = Of::template begin<false>(BY_TERMS ? 32 : 16) ^ step;
  }
  return at;
}
template <int WIDTH>
__device__ int* of_stores(int* at) {
  for (int i = 0; i < WIDTH; i += 8, at += LANES) at[lane()] = result_place<WIDTH>(lane() / 4, lane() % 4 * 2 + i) * 4;
  return at;
}
template <int WIDTH, int COUNT>
__device__ int* of_takes(int* at) {
  for (int i = 0; i < COUNT; i += 4, at += LANES)
    at[lane()] = result_place<WIDTH>(lane() * COUNT / WIDTH, lane() * COUNT % WIDTH + i) * 4;
  return at;
}
template <int SIZE>
__device__ int* of_attention(int* at) {
  using autotune::attention::Attention;
  using autotune::attention::Nothing;
  using P = autotune::attention::Part<SIZE, 0>;
  using Of = Attention<Fp16, Nothing, P, P, P, 1, 16, 16, SIZE, SIZE, 1, 64, false>;
  for (int i = 0; i < SIZE / 8 * 2; ++i, at += LANES) at[lane()] = Of::place_of_pair(i % 2, i / 2);
  return at;
}
}  // namespace pipeline
}  // namespace autotune
KERNEL(int* places) {
CALLS
}
"""
BANKS = 128  # bytes of all of them


def addresses(tmp_path, calls):
    """The places of the lanes in each access of a warp, for each call by its number of accesses."""
    parts = tmp_path / "parts"
    parts.mkdir()
    image.install(parts)
    source = PLACES.replace("KERNEL", KERNEL)
    source = source.replace("CALLS", "\n".join(f"  places = autotune::pipeline::{call}(places);" for call in calls))
    places = np.full((sum(calls.values()), 32), -1, np.int32)
    assert launch(parts, tmp_path, compiler.completed(source), places, block=(32, 1, 1)) == FINE
    assert places.min() >= 0
    return dict(zip(calls, np.split(places, np.cumsum([*calls.values()])[:-1]), strict=True))


def conflicts(places, size):
    """How often two lanes meet in a bank: those that access 128 bytes do so together."""
    words = (places[:, :, None] + np.arange(0, size, 4)) % BANKS
    groups = words.reshape(-1, BANKS // 4)
    return sum(len(group) - len(set(group.tolist())) for group in groups)


on_cpu = pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}")


def test_conflicts_are_counted():
    assert conflicts(np.arange(0, 512, 16)[None], 16) == 0
    assert conflicts(np.arange(0, 1024, 32)[None], 16) == 4 * 16
    assert conflicts(np.zeros((1, 32), int), 4) == 31


@on_cpu
def test_lanes_that_copy_and_load_operands_do_not_meet_in_a_bank(tmp_path):
    operands = [("Fp16", True), ("Fp16", False), ("Tf32", False), ("Tf32", True), ("Int8", True)]
    kinds = [
        (f"<autotune::pipeline::{element}, {str(terms).lower()}, {steps}>", steps)
        for element, terms in operands
        for steps in (2, 4)
    ]
    calls = {f"of_operand{of}": 4 * steps for of, steps in kinds}
    calls |= {f"of_fragments{of}": 2 * steps for of, steps in kinds}
    found = addresses(tmp_path, calls)
    for of, steps in kinds:
        copies = found[f"of_operand{of}"]
        assert sorted(copies.ravel()) == list(range(0, 64 * steps * 32, 16)), f"{of}: each piece has a place of its own"
        assert conflicts(copies, 16) == 0, of
        assert conflicts(found[f"of_fragments{of}"], 4 if "Tf32, false" in of else 16) == 0, of


@on_cpu
def test_lanes_that_store_and_take_results_do_not_meet_in_a_bank(tmp_path):
    widths = (32, 64, 128, 256)
    calls = {f"of_stores<{width}>": width // 8 for width in widths}
    calls |= {f"of_takes<{width}, {count}>": count // 4 for width in widths for count in (4, 8)}
    for call, places in addresses(tmp_path, calls).items():
        assert conflicts(places, 8 if "stores" in call else 16) == 0, call


@on_cpu
def test_lanes_of_an_attention_do_not_meet_in_a_bank(tmp_path):
    depths = (32, 64, 128)
    keys = [(f"<autotune::pipeline::Fp16, true, {depth // 16}>", depth // 16) for depth in depths]
    values = [(f"<autotune::pipeline::Fp16, false, 4, {depth}>", 4) for depth in depths]
    calls = {f"of_operand{of}": depth // 4 for (of, _), depth in zip([*keys, *values], depths * 2, strict=True)}
    calls |= {f"of_fragments{of}": 2 * steps for of, steps in [*keys, *values]}
    calls |= {f"of_attention<{depth}>": depth // 4 for depth in depths}
    for call, places in addresses(tmp_path, calls).items():
        assert conflicts(places, 4 if "attention" in call else 16) == 0, call


@on_cpu
def test_division_rounds_down(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    image.install(parts)
    source = (
        KERNEL
        + """(int* x, int* divided, int* rest) {
  divided[threadIdx.x] = autotune::pipeline::floor_div(x[threadIdx.x], 3);
  rest[threadIdx.x] = autotune::pipeline::floor_mod(x[threadIdx.x], 3);
}"""
    )
    x = np.arange(-16, 16, dtype=np.int32)
    divided, rest = (np.zeros(32, np.int32) for _ in range(2))
    assert launch(parts, tmp_path, compiler.completed(source), x, divided, rest, block=(32, 1, 1)) == FINE
    assert np.array_equal(divided, x // 3) and np.array_equal(rest, x % 3)
