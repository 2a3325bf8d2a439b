"""Buffers that are in use at the same time share no byte, and the memory is about as small as it can be."""

from __future__ import annotations

import itertools
import random

import pytest

from autotune.network_plan.arena import ALIGNMENT, FOR_EVER, BufferLife, Lifetimes, peak, place


def random_lives(seed: int, count: int) -> list[BufferLife]:
    draw = random.Random(seed)
    firsts = [draw.randrange(count) for _ in range(count)]
    return [BufferLife(ALIGNMENT * draw.randint(1, 40), first, first + draw.randint(0, 6)) for first in firsts]


@pytest.mark.parametrize("seed", range(4))
def test_buffers_in_use_at_once_share_no_byte(seed: int) -> None:
    lives = random_lives(seed, 40)
    offsets, size = place(lives)
    for (one, at), (other, there) in itertools.combinations(zip(lives, offsets, strict=True), 2):
        apart = one.last < other.first or other.last < one.first
        assert apart or at + one.bytes <= there or there + other.bytes <= at
    assert peak(lives) <= size == max(at + life.bytes for at, life in zip(offsets, lives, strict=True))


def test_networks_and_buffers_of_random_lives_take_no_more_than_their_peak() -> None:
    lives = [BufferLife(12288, 0, 99), BufferLife(32768, 0, 2), BufferLife(32768, 1, 2), BufferLife(32768, 2, 3)]
    lives += [BufferLife(65536, 3, 4), BufferLife(256, 4, 5)]
    assert place(lives)[1] == peak(lives) == 12288 + 3 * 32768
    cases = [random_lives(seed, 40) for seed in range(8)]
    assert [place(lives)[1] for lives in cases] == list(map(peak, cases))
    assert place([]) == ([], 0)


def test_a_chain_of_thousands_of_kernels_needs_two_of_its_buffers() -> None:
    lives = [BufferLife(ALIGNMENT, number, number + 1) for number in range(3000)]
    assert place(lives)[1] == 2 * ALIGNMENT
    assert place([BufferLife(64, 0, 1), BufferLife(64, 1, 2**62), BufferLife(64, 2, 2)])[1] == 2 * ALIGNMENT


@pytest.mark.parametrize("seed", range(4))
def test_the_first_buffers_may_have_memories_of_their_own(seed: int) -> None:
    lives = [BufferLife(life.bytes, life.first, 99) for life in random_lives(seed, 3)] + random_lives(seed, 40)
    offsets, size = place(lives, 3)
    walls = [0, *itertools.accumulate(life.bytes for life in lives[:3])]
    assert offsets[:3] == walls[:3]
    for life, start in zip(lives, offsets, strict=True):
        assert not [wall for wall in walls if start < wall < start + life.bytes]
    for (one, start), (other, begin) in itertools.combinations(zip(lives, offsets, strict=True), 2):
        apart = one.last < other.first or other.last < one.first
        assert apart or start + one.bytes <= begin or begin + other.bytes <= start
    assert size <= walls[3] + place(lives[3:])[1]


def test_a_memory_is_used_before_the_buffer_that_owns_it() -> None:
    lives = [BufferLife(128, 2, 9), BufferLife(128, 0, 1), BufferLife(64, 1, 2)]
    assert place(lives, 1) == ([0, 0, 128], 192)


def test_a_memory_is_in_use_from_the_first_to_the_last_block_that_uses_a_tensor_in_it() -> None:
    lifetimes = Lifetimes[str]()
    lifetimes.allocate("image", 640)
    lifetimes.allocate("result", 64)
    lifetimes.allocate("unread", 128)
    lifetimes.use("image", 3)
    lifetimes.share("rows", "image")
    lifetimes.share("part", "rows")
    lifetimes.use("result", 4)
    lifetimes.use("part", 7)
    lifetimes.use("result", FOR_EVER)
    assert lifetimes.lives() == {"image": BufferLife(640, 3, 7), "result": BufferLife(64, 4, FOR_EVER)}
    assert lifetimes.lives(unused=True)["unread"] == BufferLife(128, 0, 0)
    assert lifetimes.owner("part") == "image"


def test_what_lies_in_no_known_memory_is_in_none() -> None:
    lifetimes = Lifetimes[str]()
    lifetimes.share("view", "constant")
    lifetimes.use("view", 1)
    lifetimes.use("constant", 1)
    assert lifetimes.lives() == {}
    assert lifetimes.owner("view") is None
