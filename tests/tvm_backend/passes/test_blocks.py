"""The block divides the channels, or pads few of them."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.passes.convolution import PLAIN, choose_block


@pytest.mark.parametrize(
    ("channels", "block"),
    [(16, 16), (64, 16), (24, 8), (1000, 16), (12, 12), (58, 16), (7, 8), (3, PLAIN), (17, PLAIN)],
)
def test_block_of_a_number_of_channels(channels: int, block: int) -> None:
    assert choose_block(channels, 16) == block
    assert channels % max(choose_block(channels, 16, exact=True), 1) == 0
