"""Buffers that are in use at the same time never share a byte, and others do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.tvm_backend.export.writing.network import ALIGNMENT, BufferLife, aligned, place

LIVES = st.builds(
    lambda size, first, length: BufferLife(size, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 20),
    st.integers(0, 5),
)


@given(st.lists(LIVES, max_size=20))
@settings(max_examples=100, deadline=None)
def test_no_two_overlap_in_place_and_time(buffers: list[BufferLife]) -> None:
    offsets, size = place(buffers)
    spans = [(offset, offset + item.bytes) for offset, item in zip(offsets, buffers, strict=True)]
    assert all(offset % ALIGNMENT == 0 for offset in offsets) and all(end <= size for _, end in spans)
    for index, one in enumerate(buffers):
        for other in range(index):
            if one.overlaps(buffers[other]):
                assert spans[index][1] <= spans[other][0] or spans[other][1] <= spans[index][0]


def test_a_chain_needs_two_places() -> None:
    chain = [BufferLife(100, index, index + 1) for index in range(9)]
    assert place(chain)[1] == 2 * aligned(100)


def test_no_buffers_need_no_memory() -> None:
    assert place([]) == ([], 0)
