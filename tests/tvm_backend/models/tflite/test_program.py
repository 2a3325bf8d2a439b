"""Models of TensorFlow Lite, from the file to the results of a compiled module, beside those of LiteRT."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ModelError
from autotune.options import InputSpec
from autotune.tvm_backend.export.runners import litert_runner
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer, check_runs
from autotune.tvm_backend.models.tflite.program import import_flatbuffer
from autotune.tvm_backend.models.tflite.shapes import with_constant_shapes

SAME = 0
VALID = 1
RELU6 = 3


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def agree(path: Path) -> Counter[str]:
    """Import a file, run it with TVM and with LiteRT, and compare; returns how many there are of each operator."""
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned
    from autotune.tvm_backend.expressions import op_name

    model = import_flatbuffer(Flatbuffer(path), {}, {})
    arrays = [draw(*item.shape) for item in model.inputs]
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    machine = relax.VirtualMachine(compile_untuned(model.module, target), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, arrays))
    outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    expected = litert_runner(path, arrays, 1)()
    assert len(outputs) == len(expected) == len(model.outputs)
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-5)
    blocks = model.module["main"].body.blocks
    return Counter(op_name(binding.value) for block in blocks for binding in block.bindings)


def convolve(network: Any, x: int, shape: tuple[int, ...], weights: Any, padding: int = SAME, stride: int = 1) -> int:
    options = {"padding": padding, "strideH": stride, "strideW": stride, "fusedActivationFunction": RELU6}
    number = weights if isinstance(weights, int) else network.constant(weights)
    bias = network.constant(draw(shape[3]))
    return int(network.add("CONV_2D", x, number, bias, shape=shape, kind="Conv2DOptions", **options))


def test_an_image_network_is_transposed_once(network: Any, tmp_path: Path) -> None:
    """Each operator of it has its channels last in the file. What is made of it is theirs first, to the pooling."""
    x = network.input("image", 1, 9, 9, 3)
    pads = network.constant(np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32))
    a = network.add("PAD", x, pads, shape=(1, 12, 10, 3))
    a = convolve(network, a, (1, 5, 4, 8), draw(8, 3, 3, 3), VALID, 2)
    slopes = network.constant(draw(1, 1, 8))
    b = network.add("PRELU", a, slopes, shape=(1, 5, 4, 8))
    options = {"padding": SAME, "strideH": 1, "strideW": 1, "depthMultiplier": 1}
    weights = network.constant(draw(1, 3, 3, 8)), network.constant(draw(8))
    b = network.add("DEPTHWISE_CONV_2D", b, *weights, shape=(1, 5, 4, 8), kind="DepthwiseConv2DOptions", **options)
    b = network.add("ADD", b, a, shape=(1, 5, 4, 8), kind="AddOptions")
    more = network.constant(np.array([[0, 0], [0, 0], [0, 0], [0, 4]], np.int32))
    b = network.add("PAD", b, more, shape=(1, 5, 4, 12))
    pool = {"padding": SAME, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    c = network.add("MAX_POOL_2D", b, shape=(1, 3, 2, 12), kind="Pool2DOptions", **pool)
    size = network.constant(np.array([5, 4], np.int32))
    half = {"halfPixelCenters": True}
    c = network.add("RESIZE_BILINEAR", c, size, shape=(1, 5, 4, 12), kind="ResizeBilinearOptions", **half)
    c = network.add("CONCATENATION", b, c, shape=(1, 5, 4, 24), kind="ConcatenationOptions", axis=3)
    axes = network.constant(np.array([1, 2], np.int32))
    d = network.add("MEAN", c, axes, shape=(1, 24), kind="ReducerOptions", keepDims=False)
    dense = network.constant(draw(5, 24)), network.constant(draw(5))
    d = network.add("FULLY_CONNECTED", d, *dense, shape=(1, 5), kind="FullyConnectedOptions")
    counts = agree(
        network.write(tmp_path / "m", network.add("SOFTMAX", d, shape=(1, 5), kind="SoftmaxOptions", beta=1.0))
    )
    assert counts["relax.nn.conv2d"] == 2 and counts["relax.nn.pad"] == 1  # one is the padding of a convolution
    assert counts["relax.permute_dims"] == 1


def test_an_output_has_its_channels_last(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 1, 4, 4, 3)
    a = convolve(network, x, (1, 4, 4, 2), draw(2, 3, 3, 3))
    flat = network.add("RESHAPE", a, network.constant(np.array([1, 32], np.int32)), shape=(1, 32))
    network.graph.tensors[a].name = "map"
    path = network.write(tmp_path / "m", a, flat, x)
    assert agree(path)["relax.permute_dims"] == 2
    assert import_flatbuffer(Flatbuffer(path), {}, {}).outputs == ("map", "reshape1", "x")


def test_a_transposed_convolution(network: Any, tmp_path: Path) -> None:
    a = convolve(network, network.input("x", 1, 4, 4, 3), (1, 4, 4, 6), draw(6, 1, 1, 3))
    shape = network.constant(np.array([1, 8, 8, 5], np.int32))
    weights = network.constant(draw(5, 2, 2, 6))
    options = {"padding": VALID, "strideH": 2, "strideW": 2}
    b = network.add("TRANSPOSE_CONV", shape, weights, a, shape=(1, 8, 8, 5), kind="TransposeConvOptions", **options)
    assert agree(network.write(tmp_path / "m", b))["relax.permute_dims"] == 2


def test_operators_that_mix_images_and_vectors(network: Any, tmp_path: Path) -> None:
    """A tensor of fewer axes, reductions that are not over the whole image, and two images side by side."""
    scale = network.input("scale", 3)
    a = convolve(network, network.input("x", 2, 4, 5, 3), (2, 4, 5, 3), draw(3, 1, 1, 3))
    b = network.add("MUL", a, scale, shape=(2, 4, 5, 3), kind="MulOptions")
    rows = network.constant(np.array([1], np.int32))
    channels = network.constant(np.array([3], np.int32))
    c = network.add("SUM", a, rows, shape=(2, 5, 3), kind="ReducerOptions", keepDims=False)
    d = network.add("REDUCE_MAX", a, channels, shape=(2, 4, 5, 1), kind="ReducerOptions", keepDims=True)
    e = network.add("SUB", a, d, shape=(2, 4, 5, 3), kind="SubOptions")
    wide = network.add("CONCATENATION", a, e, shape=(2, 4, 10, 3), kind="ConcatenationOptions", axis=2)
    agree(network.write(tmp_path / "m", b, c, d, e, wide))


def test_weights_in_float16_and_sparse_ones(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 1, 4, 4, 6)
    half = network.constant(draw(5, 3, 3, 6).astype(np.float16))
    a = convolve(network, x, (1, 4, 4, 5), network.add("DEQUANTIZE", half, shape=(5, 3, 3, 6)))
    rows = draw(7, 5).astype(np.float16) * (np.arange(35).reshape(7, 5) % 3 == 0)
    dense = network.add("DENSIFY", network.sparse(rows), shape=(7, 1, 1, 5), dtype=np.float16)
    b = convolve(network, a, (1, 4, 4, 7), network.add("DEQUANTIZE", dense, shape=(7, 1, 1, 5)))
    counts = agree(network.write(tmp_path / "m", b))
    assert counts["relax.nn.conv2d"] == 2


def test_shapes_are_those_of_the_file(network: Any, tmp_path: Path) -> None:
    path = network.write(tmp_path / "m", network.add("EXP", network.input("x", 2, 3), shape=(2, 3)))
    model = Flatbuffer(path)
    assert import_flatbuffer(model, {"x": InputSpec("x", (2, 3), "")}, {}).inputs == (
        InputSpec("x", (2, 3), "float32"),
    )
    with pytest.raises(ModelError, match="input 'x' is float32 2x3 in the file; for another shape convert it again"):
        import_flatbuffer(model, {"x": InputSpec("x", (4, 3), "")}, {})
    with pytest.raises(ModelError, match="m has no input 'y'; its inputs: x"):
        import_flatbuffer(model, {"y": InputSpec("y", (4, 3), "")}, {})
    with pytest.raises(ModelError, match="m has no dimension 'batch'"):
        import_flatbuffer(model, {}, {"batch": 2})


def test_what_litert_refuses_is_refused(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 1, 4, 4, 3)
    sound = Flatbuffer(network.write(tmp_path / "sound", convolve(network, x, (1, 4, 4, 2), draw(2, 1, 1, 3))))
    check_runs(sound)
    network.graph.operators[0].inputs[2] = -1  # LiteRT wants a bias
    unsound = Flatbuffer(network.write(tmp_path / "unsound", *sound.outputs()))
    with pytest.raises(ModelError, match=r"unsound is refused by LiteRT: RuntimeError: "):
        check_runs(unsound)


def test_an_operator_that_tvm_lacks_is_named(network: Any, tmp_path: Path) -> None:
    y = network.add("RNN", network.input("x", 2, 3), shape=(2, 3))
    with pytest.raises(ModelError, match="operator RNN '.*' is not supported: there is no rule for it; "):
        import_flatbuffer(Flatbuffer(network.write(tmp_path / "m", y)), {}, {})


def test_an_axis_of_one_is_put_in(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 2, 3)
    y = network.add("EXPAND_DIMS", x, network.constant(np.array([1], np.int32)), shape=(2, 1, 3))
    agree(network.write(tmp_path / "m", y))


def test_a_parameter_that_is_computed_is_said_with_its_operator(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 2, 3)
    place = network.input("place", 1, dtype=np.int32)
    path = network.write(tmp_path / "m", network.add("EXPAND_DIMS", x, place, shape=(2, 1, 3)))
    with pytest.raises(
        ModelError, match="cannot import .*m: operator EXPAND_DIMS '.*' is not supported: 'place' is computed while"
    ):
        import_flatbuffer(Flatbuffer(path), {}, {})


def test_a_shape_that_follows_from_shapes_is_a_constant(network: Any, tmp_path: Path) -> None:
    """As Keras's Flatten is written: the size of the batch, and a constant. The file leaves the result's shape open."""
    x = network.input("x", 2, 3, 4)
    flat = network.add("RESHAPE", x, wanted_shape(network, x, 12), shape=(1, 1))
    agree(network.write(tmp_path / "m", network.add("SQUARE", flat, shape=(1, 1))))


def test_a_number_that_has_no_axis_may_follow_from_shapes(network: Any, tmp_path: Path) -> None:
    """An empty list of sizes, which the file has no bytes of, makes a number of a list of one."""
    x = network.input("x", 6, 2)
    sizes = shape_of(network, x)
    begin, count = (network.constant(np.array([value], np.int32)) for value in (0, 1))
    rows = network.add("SLICE", sizes, begin, count, shape=(1,), kind="SliceOptions", dtype=np.int32)
    number = network.add("RESHAPE", rows, network.constant(np.zeros(0, np.int32)), shape=(), dtype=np.int32)
    two = network.constant(np.array(2, np.int32))
    half = network.add("FLOOR_DIV", number, two, shape=(), kind="FloorDivOptions", dtype=np.int32)
    wanted = network.add("PACK", half, two, two, shape=(3,), kind="PackOptions", dtype=np.int32, valuesCount=3)
    agree(network.write(tmp_path / "m", network.add("RESHAPE", x, wanted, shape=(1, 2, 2))))


def test_shapes_that_may_follow_from_values_are_left_as_they_are(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 2, 3)
    flat = network.add("RESHAPE", x, wanted_shape(network, x, 3), shape=(2, 3))
    chosen = network.add("WHERE", network.input("mask", 4, dtype=np.bool_), shape=(1, 1), dtype=np.int64)
    flatbuffer = Flatbuffer(network.write(tmp_path / "m", flat, chosen))
    assert with_constant_shapes(flatbuffer) is flatbuffer


def test_the_real_part_of_a_transform_of_frames_is_a_product(network: Any, tmp_path: Path) -> None:
    """A cast to floats takes the real part."""
    x = network.input("x", 3, 1, 16)
    lengths = network.constant(np.array([1, 16], np.int32))
    spectrum = network.add("RFFT2D", x, lengths, shape=(3, 1, 9), kind="Rfft2dOptions", dtype=np.complex64)
    rows = network.add("SQUEEZE", spectrum, shape=(3, 9), kind="SqueezeOptions", dtype=np.complex64, squeezeDims=[1])
    operators = agree(network.write(tmp_path / "m", network.add("CAST", rows, shape=(3, 9), kind="CastOptions")))
    assert operators["relax.matmul"] == 1


def test_entries_are_taken_by_constant_indices_and_none_beyond_the_end(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 5, 3)
    indices = network.constant(np.array([[4, 0], [1, 1]], np.int32))
    agree(network.write(tmp_path / "m", network.add("GATHER", x, indices, shape=(2, 2, 3), kind="GatherOptions")))
    beyond = network.constant(np.array([5], np.int32))
    path = network.write(tmp_path / "n", network.add("GATHER", x, beyond, shape=(1, 3), kind="GatherOptions"))
    with pytest.raises(ModelError, match="operator GATHER '.*' is not supported: an index is beyond the end"):
        import_flatbuffer(Flatbuffer(path), {}, {})


def shape_of(network: Any, x: int) -> int:
    kind = network.schema.TensorType.INT32
    rank = len(network.graph.tensors[x].shape)
    return int(network.add("SHAPE", x, shape=(rank,), kind="ShapeOptions", dtype=np.int32, outType=kind))


def wanted_shape(network: Any, x: int, rest: int) -> int:
    """The first size of a tensor, and a constant."""
    begin, end, step = (network.constant(np.array([value], np.int32)) for value in (0, 1, 1))
    slicing = {"kind": "StridedSliceOptions", "dtype": np.int32, "shrinkAxisMask": 1}
    batch = network.add("STRIDED_SLICE", shape_of(network, x), begin, end, step, shape=(), **slicing)
    number = network.constant(np.array(rest, np.int32))
    return int(network.add("PACK", batch, number, shape=(2,), kind="PackOptions", dtype=np.int32, valuesCount=2))


def test_a_shape_that_only_a_run_knows_is_said_with_its_operator(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 2, 3)
    wanted = network.input("wanted", 2, dtype=np.int32)
    path = network.write(tmp_path / "m", network.add("RESHAPE", x, wanted, shape=(1, 1)))
    with pytest.raises(ModelError, match="operator RESHAPE '.*' is not supported: its shape is computed from values"):
        import_flatbuffer(Flatbuffer(path), {}, {})
