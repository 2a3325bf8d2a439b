"""A tensor is brought into an encoding once, however many operators read it there."""

from __future__ import annotations

from typing import Any

from autotune.tvm_backend.expressions import kernel_calls

from ..quantised_nets import Network, outcome


def kernels(prepared: Any) -> list[str]:
    """The kernels that a module calls, one after the other."""
    return [call.args[0].name_hint.rstrip("0123456789_") for calls in kernel_calls(prepared) for call in calls]


def test_an_image_that_two_convolutions_read_is_packed_once(quantised, here):
    net = Network((1, 3, 8, 8))
    one = net.conv(3, 32)
    net.add("Add", net.conv(3, 32, of="input"), one)
    result = outcome(quantised(net), here)
    assert result.share == 0
    assert kernels(result.prepared).count("integer_quantise") == 1
