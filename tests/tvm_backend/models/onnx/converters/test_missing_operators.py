"""Operators that TVM's importer lacks: imported, compiled and run, they compute what ONNX's own tests expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.options import InputSpec
from autotune.tvm_backend.models.onnx.read import read_model

from ..onnx_cases import onnx_cases

CONSTANT = {"axis", "block_shape", "image_shape", "roi", "scales", "sizes"}
CASES = [
    "bitcast_2d_float32_to_int32",
    "bitcast_bool_to_uint8",
    "col2im",
    "col2im_5d",
    "col2im_strides",
    "cumprod_2d_negative_axis",
    "cumprod_1d_reverse_exclusive",
    "basic_deform_conv_with_padding",
    "deform_conv_with_mask_bias",
    "deform_conv_with_multiple_offset_groups",
    "eyelike_populate_off_main_diagonal",
    "eyelike_with_dtype",
    "resize_downsample_scales_cubic_A_n0p5_exclude_outside",
    "resize_downsample_scales_cubic_antialias",
    "resize_downsample_scales_linear_antialias",
    "resize_downsample_sizes_nearest_not_smaller",
    "resize_tf_crop_and_resize",
    "resize_tf_crop_and_resize_axes_3_2",
    "resize_tf_crop_and_resize_extrapolation_value",
    "resize_upsample_scales_nearest_axes_3_2",
    "resize_upsample_sizes_nearest_not_larger",
]


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def results(model: Any, values: list[Any], folder: Path) -> list[Any]:
    import tvm
    from tvm import relax

    from autotune.tvm_backend.export.compilation import compile_untuned
    from autotune.tvm_backend.export.host_tensors import tensors_of

    onnx.save(model, str(folder / "m.onnx"))
    given = dict(zip((item.name for item in model.graph.input), values, strict=True))
    constants = {name: given.pop(name).astype(float).tolist() for name in sorted(CONSTANT & given.keys())}
    inputs = {name: InputSpec(name, value.shape, "") for name, value in given.items()}
    module = read_model(folder / "m.onnx", inputs, values=constants).module
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0, "num-cores": 1})
    machine = relax.VirtualMachine(compile_untuned(module, target), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, given.values()))
    return [output.numpy() for output in tensors_of(outputs)]


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_onnx_expects(target: Any, name: str, tmp_path: Path) -> None:
    case = onnx_cases()[name]
    values, expected = ([array(value) for value in part] for part in case.data_sets[0])
    for output, truth in zip(results(case.model, values, tmp_path), expected, strict=True):
        assert output.dtype == truth.dtype and output.shape == truth.shape
        np.testing.assert_allclose(output, truth, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "half_pixel_symmetric"])
def test_ratios_that_no_size_has_and_all_axes_are_resized_as_by_onnx_runtime(
    target: Any, mode: str, coordinates: str, tmp_path: Path
) -> None:
    import onnxruntime

    scales = [1.0, 1.0, 0.7, 1.3] if mode == "cubic" else [1.0, 1.7, 0.7, 1.3]
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 5)).astype("float32")
    options = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "linear":
        scales[1] = 1.0
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    constants = [numpy_helper.from_array(np.array(scales, "float32"), "s")]
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], **options)], "g", [given], [onnx.ValueInfoProto(name="y")],
        constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (truth,) = session.run(None, {"x": x})
    (output,) = results(model, [x], tmp_path)
    np.testing.assert_allclose(output, truth, rtol=1e-4, atol=1e-5)


def of_one(kind: str, shapes: dict[str, tuple[int, ...]], **attributes: Any) -> Any:
    """Return a model of one operator on floats."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node(kind, list(shapes), ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=9)


def test_a_deformable_convolution_by_groups_with_strides_takes_pixels_far_outside_as_nothing(
    target: Any, tmp_path: Path
) -> None:
    import onnxruntime

    shapes = {"x": (2, 4, 7, 6), "w": (6, 2, 3, 2), "offset": (2, 24, 3, 3), "b": (6,), "mask": (2, 12, 3, 3)}
    model = of_one(
        "DeformConv", shapes, group=2, offset_group=2, strides=[2, 2], dilations=[1, 2], pads=[0, 1, 0, 1],
        kernel_shape=[3, 2],
    )  # fmt: skip
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(shape).astype("float32") for shape in shapes.values()]
    values[2] *= 1e10 * (rng.random(shapes["offset"]) < 0.1) + 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (truth,) = session.run(None, dict(zip(shapes, values, strict=True)))
    (output,) = results(model, values, tmp_path)
    np.testing.assert_allclose(output, truth, rtol=1e-4, atol=1e-4)
