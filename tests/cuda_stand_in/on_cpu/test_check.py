"""What sanitizers say of kernels that are right, and of those that are not."""

from __future__ import annotations

import pytest

from . import check, image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(image.missing()), reason=f"NO KERNEL WAS RUN: {image.missing()}"),
]

# Each of two warps reads what the other wrote.
REVERSE = """
extern "C" __global__ void __launch_bounds__(64) reverse(float* x, float* y) {
  __shared__ alignas(64) float seen[64];
  seen[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = seen[63 - threadIdx.x];
}
"""
LAUNCH = "reverse 1 1 1 64 1 1 0 *256 *256\n"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for sanitizer in ("thread", "address"):
        check.compile_parts(folder / sanitizer, sanitizer)
    return folder


@pytest.fixture
def said(parts, tmp_path):
    """Compiles a source and returns what a sanitizer says of a launch of it."""

    def run(source, sanitizer):
        (tmp_path / "launches").write_text(LAUNCH)
        check.compile_program(source, parts / sanitizer, sanitizer, tmp_path / "program")
        return check.complaints(tmp_path / "program", tmp_path / "launches")

    return run


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_nothing_is_said_of_a_kernel_that_is_right(said, sanitizer):
    assert said(REVERSE, sanitizer) == []


# The same with copies that nobody waits for before the barrier.
COPIED = r"""
extern "C" __global__ void __launch_bounds__(64) reverse(float* x, float* y) {
  __shared__ alignas(64) float seen[64];
  unsigned to = __cvta_generic_to_shared(seen + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(x + threadIdx.x), "n"(4));
  asm volatile("cp.async.commit_group;" ::);
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
  __syncthreads();
  y[threadIdx.x] = seen[63 - threadIdx.x];
}
"""


def test_a_copy_is_seen_after_a_barrier_only_where_it_was_waited_for_before(said):
    assert said(COPIED.replace("PENDING", "0"), "thread") == []
    (race, *_) = said(COPIED.replace("PENDING", "1"), "thread")
    assert "data race" in race


def test_a_barrier_that_is_missing_is_a_race(said):
    (race, *_) = said(REVERSE.replace("__syncthreads();", ""), "thread")
    assert "data race" in race


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        ("seen[63 - threadIdx.x]", "seen[64 - threadIdx.x]", "global-buffer-overflow"),
        ("= x[threadIdx.x]", "= x[threadIdx.x + 1]", "heap-buffer-overflow"),
    ],
)
def test_an_index_beyond_its_array_is_found(said, right, wrong, kind):
    (overflow, *_) = said(REVERSE.replace(right, wrong), "address")
    assert kind in overflow
