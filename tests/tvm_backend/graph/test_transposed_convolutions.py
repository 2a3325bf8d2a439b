"""Transposed convolutions become convolutions with an output for each phase."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tvm import relax

from autotune.tvm_backend.graph.transposed_convolutions import split_phases

_OP = relax.op
_SIGNAL = ["nn.conv1d", "reshape", "permute_dims", "reshape"]
_IMAGE = ["nn.conv2d", "reshape", "permute_dims", "reshape"]


@pytest.fixture
def split(rewritten):
    """The operators after the rewrite."""
    return partial(rewritten, split_phases)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        (16, {"strides": 8, "padding": (4, 4)}),  # a vocoder's
        (4, {"strides": 2}),
        (3, {"strides": 2, "padding": (1, 1), "output_padding": 1}),  # phases of one and of two taps
        (5, {"strides": 3, "padding": (0, 2)}),
        (2, {"strides": 5, "output_padding": 3}),  # phases of no tap
        (6, {"strides": 2, "groups": 2}),
    ],
)
def test_signals(split: Any, const: Any, kernel: int, attrs: dict[str, Any]) -> None:
    outputs = 6 // attrs.get("groups", 1)
    made = split(lambda _, x: _OP.nn.conv1d_transpose(x, const(4, outputs, kernel), **attrs), (2, 4, 9))
    assert [name for name in made if name != "strided_slice"] == _SIGNAL


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((4, 4), {"strides": 2, "padding": 1}),
        ((3, 3), {"strides": (2, 1), "padding": (0, 1, 1, 1)}),
        ((3, 5), {"strides": (2, 3), "padding": (1, 2, 0, 1), "output_padding": (1, 0)}),
        ((4, 4), {"strides": 2, "padding": 1, "groups": 4}),
    ],
)
def test_images(split: Any, const: Any, kernel: tuple[int, int], attrs: dict[str, Any]) -> None:
    outputs = 8 // attrs.get("groups", 1)
    made = split(lambda _, x: _OP.nn.conv2d_transpose(x, const(4, outputs, *kernel), **attrs), (2, 4, 5, 7))
    assert [name for name in made if name != "strided_slice"] == _IMAGE


@pytest.mark.parametrize("attrs", [{}, {"padding": 1}, {"padding": (0, 2, 1, 0)}, {"groups": 2}])
def test_without_strides_there_is_one_convolution(split: Any, const: Any, attrs: dict[str, Any]) -> None:
    outputs = 6 // attrs.get("groups", 1)
    made = split(lambda _, x: _OP.nn.conv2d_transpose(x, const(4, outputs, 3, 3), **attrs), (2, 4, 5, 7))
    assert made == ["nn.conv2d"]


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        (2, {"strides": 2}),  # separate windows have a kernel of their own
        (3, {"strides": 2, "dilation": 2}),
        (3, {"strides": 2, "padding": 5}),  # pixels of the input that nothing reads
    ],
)
def test_others_stay(split: Any, const: Any, kernel: int, attrs: dict[str, Any]) -> None:
    made = split(lambda _, x: _OP.nn.conv2d_transpose(x, const(4, 6, kernel, kernel), **attrs), (1, 4, 9, 9))
    assert made == ["nn.conv2d_transpose"]
