"""Transposed convolutions with separate windows compute what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import pytest

from ..packed_nets import Net, check


def enlarge(net: Net, x: str, inputs: int, outputs: int, kernel: int = 2, **attrs: Any) -> str:
    weight = net.constant(inputs, outputs, kernel, kernel)
    return net.op("ConvTranspose", x, weight, net.constant(outputs), **{"strides": [kernel] * 2, **attrs})


@pytest.mark.parametrize(("inputs", "outputs", "kernel"), [(24, 16, 3), (3, 32, 2), (16, 40, 2)])
def test_a_transposed_convolution_with_separate_windows(inputs: int, outputs: int, kernel: int) -> None:
    counts = check(lambda net: enlarge(net, "x", inputs, outputs, kernel), 1, inputs, 5, 7)
    assert counts["conv2d_transpose_NCHWc"] == 1


@pytest.mark.parametrize(("inputs", "outputs"), [(24, 3), (3, 1)])
def test_a_transposed_convolution_with_few_outputs(inputs: int, outputs: int) -> None:
    counts = check(lambda net: net.op("Sigmoid", enlarge(net, "x", inputs, outputs)), 1, inputs, 5, 7)
    assert (counts["conv2d_NCHWc"], counts["spread"]) == (1, 1)


@pytest.mark.parametrize("attrs", [{"strides": [1, 2]}, {"pads": [1, 0, 0, 1]}, {"output_padding": [1, 1]}])
def test_a_transposed_convolution_with_overlap_or_padding_stays_plain(attrs: dict[str, Any]) -> None:
    assert check(lambda net: enlarge(net, "x", 16, 16, **attrs), 1, 16, 5, 7)["relax.nn.conv2d_transpose"] == 1
