"""Images without a good tile are computed as rows of pixels, and the result is what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.tvm_backend.lowering import prepare
from autotune.tvm_backend.models.onnx.read import read_model
from autotune.tvm_backend.operators.pixel_tiles import padded_pixels
from autotune.tvm_backend.packing.blocked_images import pack_layouts
from autotune.tvm_backend.search.tasks import extract_tasks

from ..packed_nets import Net, assert_same, imported, operators
from .test_winograd import assert_candidates_agree, last_block

AVX2 = (8, 16)
AVX512 = (16, 32)


def test_few_registers_have_no_good_tile_for_an_odd_image() -> None:
    for size in [(7, 7), (11, 11), (13, 13), (1, 49), (7, 13)]:
        pixels = size[0] * size[1]
        assert pixels < padded_pixels(size, 256, 16, AVX2) <= 1.1 * pixels, size


def test_an_image_with_a_good_tile_stays_as_it_is() -> None:
    for size in [(5, 5), (6, 6), (8, 8), (12, 12), (14, 14), (28, 28), (9, 9), (27, 27), (7, 8)]:
        assert padded_pixels(size, 256, 16, AVX2) == 0, size
    for size in [(7, 7), (13, 13)]:
        assert padded_pixels(size, 256, 16, AVX512) == 0, "a tile has as many pixels as the registers hold"
    assert padded_pixels((1, 1), 256, 16, AVX2) == 0, "one pixel more would be twice the work"
    assert padded_pixels((13, 13), 2048, 16, AVX2) == 0, "the sums would leave the caches"


def rows(net: Net, *shape: int) -> tuple[Any, Any]:
    """The model, and its module packed for few registers."""
    model = net.model(f"v{len(net.nodes) - 1}")
    return model, pack_layouts(imported(model), registers=AVX2)


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "attrs"),
    [
        (32, 64, 1, {}),
        (32, 64, 3, {}),
        (24, 40, 3, {"strides": [2, 2]}),
        (28, 28, 3, {"dilations": [2, 1], "pads": [2, 1, 2, 1]}),
        (16, 32, 3, {"strides": [2, 1], "pads": [1, 0, 0, 2]}),
    ],
)
def test_a_row_of_pixels_is_the_convolution(channels: int, outputs: int, kernel: int, attrs: dict[str, Any]) -> None:
    size = [7 * step for step in attrs.get("strides", (1, 1))]
    net = Net(2, channels, *size)
    net.op("Relu", net.conv("x", channels, outputs, kernel, **attrs))
    model, module = rows(net)
    assert "image_of_pixels" in module.script()
    assert_same(model, module)


def test_a_grouped_convolution_and_a_plain_input_stay_images() -> None:
    net = Net(1, 3, 7, 7)
    net.conv(net.conv("x", 3, 32), 32, 32, group=2)
    model, module = rows(net)
    assert "image_of_pixels" not in module.script()
    assert operators(module)["group_conv2d_NCHWc"] == 1
    assert_same(model, module)


def tasks(path: Path, target: Any) -> list[Any]:
    """The tasks that are convolutions."""
    extracted = extract_tasks(prepare(read_model(path, {}).module, target), target)
    return [task for task in extracted if task.spec.name.startswith("conv2d_NCHWc")]


def test_candidates_compute_the_same_with_what_is_fused_where_the_image_is_written(convolution, tmp_path, target):
    (task,) = tasks(convolution(tmp_path / "m.onnx", (1, 48, 13, 13), 64, kernel=1, tail=True), target)
    assert_candidates_agree(task.program, target, tmp_path / "c.so")
    block = last_block(task.program, target)
    assert block.name_hint == "image_of_pixels"
    assert "T.max" in block.script()
