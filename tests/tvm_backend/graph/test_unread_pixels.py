"""Pixels that nothing reads are not computed."""

from __future__ import annotations

import random
from functools import partial

import pytest
from tvm import relax

from autotune.tvm_backend.expressions import op_name, static_shape
from autotune.tvm_backend.graph.unread_pixels import drop_unread_pixels

from ..relax_functions import function

_OP = relax.op
_NN = relax.op.nn
IMAGE = (1, 4, 9, 12)
QUARTER = (5, 6)


@pytest.fixture
def computed(rewritten):
    """Rewrite a function, which must go on computing the same; return the sizes of the images after each operator."""

    def sizes(build, *shapes):
        after_each = []

        def rewrite(module):
            after = drop_unread_pixels(module)
            values = [item.value for block in after["main"].body.blocks for item in block.bindings]
            after_each.extend(
                (op_name(value).rpartition(".")[2], static_shape(value)[2:]) for value in values if op_name(value)
            )
            return after

        rewritten(rewrite, build, *shapes)
        return after_each

    return sizes


@pytest.fixture
def conv(const):
    """A convolution of 4 channels, which keeps the size of the image if its stride is 1."""

    def make(data, kernel=1, stride=1, groups=1, **attrs):
        attrs.setdefault("padding", kernel // 2)
        return _NN.conv2d(data, const(4, 4 // groups, kernel, kernel), strides=stride, groups=groups, **attrs)

    return make


@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({}, 0),
        ({}, (2, 0, 1, 3)),
        ({"stride": 2}, 1),
        ({"stride": (1, 3)}, (2, 0, 1, 3)),
        ({"groups": 4}, 1),
        ({"dilation": (2, 1)}, (2, 0, 1, 3)),
    ],
)
def test_a_convolution_before_one_with_a_stride_takes_the_stride(options, padding, computed, conv):
    def build(emit, x):
        return conv(emit(conv(x, 3, padding=padding, **options)), stride=2)

    first, second = computed(build, (1, 4, 17, 24))
    assert first == second


def test_the_last_block_of_a_stage_computes_a_quarter_of_its_pixels(computed, conv, const):
    def build(emit, x):
        before = emit(_NN.relu(x))
        inner = emit(_NN.relu(emit(_OP.add(emit(conv(before, 3)), const(1, 4, 1, 1)))))
        block = emit(_NN.relu(emit(_OP.add(emit(conv(inner)), before))))
        return _OP.add(emit(conv(block, stride=2)), emit(conv(emit(conv(block, stride=2)), 3)))

    every = [("relu", IMAGE[2:])]
    fewer = ["conv2d", "add", "relu", "conv2d", "strided_slice", "add", "relu", "conv2d", "conv2d", "conv2d", "add"]
    assert computed(build, IMAGE) == every + [(name, QUARTER) for name in fewer]


def test_steps_add_up_over_several_strides_and_are_shared_by_readers(computed, conv):
    def chain(emit, x):
        return conv(emit(conv(emit(conv(x, 3)), stride=2)), stride=3)

    def fork(emit, x):
        shared = emit(conv(x, 3))
        return _OP.concat([emit(conv(shared, stride=(4, 2))), emit(conv(shared, stride=(4, 6)))], axis=3)

    assert computed(chain, IMAGE) == [("conv2d", (2, 2))] * 3
    assert computed(fork, IMAGE)[0] == ("conv2d", (3, 6))


@pytest.mark.parametrize("reader", ("output", "convolution of three", "padded", "pool", "mean", "every pixel"))
def test_an_image_that_something_else_reads_is_computed_whole(reader, computed, conv):
    others = {
        "convolution of three": lambda image: conv(image, 3, 2),
        "padded": lambda image: conv(image, 1, 2, padding=1),
        "pool": lambda image: _NN.max_pool2d(image, (1, 1), (2, 2)),
        "mean": lambda image: _OP.mean(image, [2, 3], True),
        "every pixel": conv,
    }

    def build(emit, x):
        image = emit(conv(x, 3))
        less = emit(_OP.mean(emit(conv(image, stride=2)), [2, 3], True))
        return _OP.add(image if reader == "output" else emit(others[reader](image)), less)

    assert computed(build, IMAGE)[0] == ("conv2d", IMAGE[2:])


def test_scales_of_channels_are_no_images(computed, conv, const):
    def build(emit, x):
        scale = emit(_OP.sigmoid(emit(_OP.mean(x, [2, 3], True))))
        image = emit(_OP.multiply(emit(_OP.multiply(emit(conv(x, 3)), scale)), const(4, 1, 1)))
        return conv(image, stride=2)

    assert computed(build, IMAGE) == [
        ("mean", (1, 1)),
        ("sigmoid", (1, 1)),
        *((name, QUARTER) for name in ("conv2d", "multiply", "multiply", "conv2d")),
    ]


def test_a_constant_with_a_number_for_each_pixel_keeps_all_pixels(computed, conv, const):
    def build(emit, x):
        return conv(emit(_OP.add(emit(conv(x, 3)), const(1, 1, *IMAGE[2:]))), stride=2)

    assert computed(build, IMAGE)[:2] == [("conv2d", IMAGE[2:]), ("add", IMAGE[2:])]


def test_a_network_whose_pixels_are_all_read_stays_the_same_module(conv):
    module = function(lambda emit, x: conv(emit(conv(x, 3)), 3, 2), IMAGE)
    assert drop_unread_pixels(module) is module


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_random_networks_compute_the_same(seed, computed, conv, const):
    chosen = random.Random(seed)

    def build(emit, x):
        images = [x]
        for _ in range(12):
            image = chosen.choice(images[-3:])
            makes = [
                partial(conv, image, chosen.choice((1, 3)), chosen.choice((1, 1, 2))),
                partial(_NN.relu, image),
                partial(_OP.multiply, image, const(4, 1, 1)),
                *(partial(_OP.add, image, other) for other in images if static_shape(other) == static_shape(image)),
            ]
            images.append(emit(chosen.choice(makes)()))
        return _NN.relu(images[-1])

    assert computed(build, (1, 4, 23, 18))
