"""A model that is not taken: the error says which operator, why, and what to do, and no exception is shown bare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from autotune.errors import ModelError, OperatorRefused
from autotune.tvm_backend.models.onnx.read import read_model

from .onnx_cases import onnx_cases

# Tests of ONNX with one operator, one for each reason that an operator is refused for.
OPERATORS = {
    "affine_grid_2d": "AffineGrid",
    "bernoulli": "Bernoulli",
    "center_crop_pad_crop": "Pad",
    "col2im": "Col2Im",
    "cumprod_1d": "CumProd",
    "cumsum_1d": "CumSum",
    "dequantizelinear_blocked": "DequantizeLinear",
    "det_2d": "Det",
    "dft": "DFT",
    "image_decoder_decode_bmp_rgb": "ImageDecoder",
    "loop11": "Loop",
    "maxunpool_export_with_output_shape": "MaxUnpool",
    "melweightmatrix": "MelWeightMatrix",
    "nonmaxsuppression_two_classes": "NonMaxSuppression",
    "onehot_negative_indices": "OneHot",
    "quantizelinear_blocked_asymmetric": "QuantizeLinear",
    "reduce_l1_do_not_keepdims_example": "ReduceL1",
    "reshape_extended_dims": "Reshape",
    "resize_downsample_scales_cubic": "Resize",
    "split_to_sequence_1": "SplitToSequence",
    "split_variable_parts_1d_opset13": "Split",
    "stft": "STFT",
    "tfidfvectorizer_tf_batch_onlybigrams_skip0": "TfIdfVectorizer",
    "top_k": "TopK",
    "upsample_nearest": "Upsample",
}
# Others, which are refused for what their inputs are, or by ONNX Runtime.
WHOLE = (
    "adagrad",
    "adam",
    "constant",
    "equal_string",
    "identity_opt",
    "identity_sequence",
    "if_seq",
    "maxpool_with_argmax_2d_precomputed_pads",
    "momentum",
    "reduce_sum_empty_set_non_reduced_axis_zero",
    "regex_full_match_basic",
    "sequence_insert_at_back",
    "string_concat",
    "string_split_basic",
)
BARE = re.compile(r"(^|: )\w+(Error|Exception): ")


def refused(proto: Any, folder: Path) -> ModelError:
    path = folder / "net.onnx"
    onnx.save(proto, str(path))
    with pytest.raises(ModelError) as caught:
        read_model(path, {})
    line = str(caught.value)
    assert "net.onnx" in line and "\n" not in line
    assert not BARE.search(line)
    assert "; " in line  # before the next step
    return caught.value


@pytest.mark.parametrize("name", OPERATORS)
def test_a_refused_operator_is_said_with_why_and_what_to_do(target: Any, name: str, tmp_path: Path) -> None:
    error = refused(onnx_cases()[name].model, tmp_path)
    assert isinstance(error, OperatorRefused) and error.refusal is not None
    refusal = error.refusal
    assert refusal.operator == OPERATORS[name]
    assert refusal.node and refusal.reason and refusal.advice
    assert "docs/guides/models.md" in refusal.advice
    assert str(error).endswith(refusal.text())


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_refused_as_a_whole_is_one_line(target: Any, name: str, tmp_path: Path) -> None:
    refused(onnx_cases()[name].model, tmp_path)


def test_an_input_that_sets_a_shape_may_be_fixed(target: Any, tmp_path: Path) -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("axes", TensorProto.INT64, [1]),
    ]
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], "total")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(helper.make_graph([node], "g", inputs, [y]), ir_version=8)
    error = refused(proto, tmp_path)
    assert isinstance(error, OperatorRefused) and error.refusal is not None
    assert error.refusal.advice.startswith("fix its input with --value axes=")
