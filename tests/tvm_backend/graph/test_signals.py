"""Convolutions over signals become convolutions over images of height one, with the activations after them."""

from __future__ import annotations

from functools import partial

import pytest
from tvm import relax

from autotune.tvm_backend.graph.signals import signals_as_images

_OP = relax.op


@pytest.fixture
def imaged(rewritten):
    """The operators after the rewrite."""
    return partial(rewritten, signals_as_images)


def test_activations_between_two_convolutions_stay_images(imaged, const):
    def build(emit, x):
        first = emit(_OP.nn.conv1d(x, const(6, 4, 3), strides=2, padding=(1, 2)))
        active = emit(_OP.nn.relu(emit(_OP.add(first, const(1, 6, 1)))))
        return _OP.nn.conv1d(active, const(5, 6, 2), dilation=2)

    assert imaged(build, (2, 4, 20)) == ["reshape", "nn.conv2d", "add", "nn.relu", "nn.conv2d", "reshape"]


def test_groups_and_branches_that_meet_again_are_kept(imaged, const):
    def build(emit, x):
        first = emit(_OP.nn.conv1d(x, const(4, 1, 3), padding=1, groups=4))
        return _OP.add(emit(_OP.multiply(first, _OP.sigmoid(first))), x)

    wanted = ["reshape", "nn.conv2d", "sigmoid", "multiply", "reshape", "add", "reshape"]
    assert imaged(build, (1, 4, 9)) == wanted


def test_what_reads_a_signal_otherwise_reads_it_as_it_was(imaged, const):
    def build(emit, x):
        first = emit(_OP.nn.conv1d(x, const(4, 3, 1)))
        return _OP.sum(emit(_OP.add(first, const(8))), axis=2)

    assert imaged(build, (1, 3, 8)) == ["reshape", "nn.conv2d", "add", "reshape", "sum"]


def test_weights_that_are_computed_are_left_alone(imaged):
    def build(emit, x, weights):
        return _OP.nn.conv1d(x, weights)

    assert imaged(build, (1, 3, 8), (4, 3, 3)) == ["nn.conv1d"]
