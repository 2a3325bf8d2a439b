"""Every input gets a shape: from the file, by its name, by the names of its dimensions, or an error that helps."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from autotune.commands.submit.words import parse_inputs
from autotune.errors import ModelError, OpenShapes
from autotune.options import InputSpec
from autotune.storage.formats import OpenBatch
from autotune.tvm_backend.models.model import OpenInput, open_batches, resolve, sensible
from autotune.tvm_backend.models.onnx.read import resolve_inputs

PATH = Path("some model.onnx")


def model(*inputs):
    """A graph whose inputs are (name, type, shape)."""
    values = [helper.make_tensor_value_info(*item) for item in inputs]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values, [output]))


IMAGE = ("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])
IDS = ("ids", TensorProto.INT64, ["batch", "sequence"])
MASK = ("mask", TensorProto.INT64, ["batch", "sequence"])
FIXED = ("z", TensorProto.FLOAT, [2, 5])


def test_a_shape_of_the_file_is_taken():
    assert resolve_inputs(PATH, model(FIXED), {}) == (InputSpec("z", (2, 5), "float32"),)


def test_a_shape_that_was_given_goes_before_the_files():
    given = {"z": InputSpec("z", (7, 5), "")}
    assert resolve_inputs(PATH, model(FIXED), given) == (InputSpec("z", (7, 5), "float32"),)


def test_a_dimension_has_its_size_wherever_its_name_stands():
    inputs = resolve_inputs(PATH, model(IDS, MASK), {}, {"batch": 2, "sequence": 16})
    assert [item.shape for item in inputs] == [(2, 16), (2, 16)]


def test_all_inputs_without_a_shape_are_named_at_once_with_options_that_work():
    with pytest.raises(ModelError) as caught:
        resolve_inputs(PATH, model(IMAGE, FIXED, IDS), {})
    text = str(caught.value)
    assert "'x' (batchx3xheightxwidth), 'ids' (batchxsequence)" in text and len(text.splitlines()) == 1
    words = shlex.split(text[text.index("--input") :])
    given = {name: specs[0] for name, specs in parse_inputs([word for word in words if word != "--input"]).items()}
    inputs = resolve_inputs(PATH, model(IMAGE, FIXED, IDS), given)
    assert [item.shape for item in inputs] == [(1, 3, 224, 224), (2, 5), (1, 128)]


def test_the_options_are_added_to_what_was_given():
    given = {"x": InputSpec("x", (4, 3, 64, 64), "")}
    with pytest.raises(ModelError, match="add its shape, such as: --input ids=2x128$"):
        resolve_inputs(PATH, model(IMAGE, IDS), given, {"batch": 2})
    inputs = resolve_inputs(PATH, model(IMAGE, IDS), {**given, "ids": InputSpec("ids", (2, 128), "")}, {"batch": 2})
    assert [item.shape for item in inputs] == [(4, 3, 64, 64), (2, 128)]


def test_an_input_that_does_not_exist():
    with pytest.raises(ModelError, match="no input 'other'; its inputs: z"):
        resolve_inputs(PATH, model(FIXED), {"other": InputSpec("other", (1,), "")})


def test_a_dimension_that_does_not_exist():
    with pytest.raises(ModelError, match="no dimension 'seq'; its open ones: batch, sequence"):
        resolve_inputs(PATH, model(IDS), {}, {"seq": 1})


@pytest.mark.parametrize(
    ("dtype", "dims", "shape"),
    [
        ("float32", ("N", 3, "H", "W"), (1, 3, 224, 224)),
        ("float32", ("", "", "", ""), (1, 3, 224, 224)),
        ("float32", ("unk", "a", "b", 3), (1, 224, 224, 3)),
        ("float32", ("N", 3, 48, "width"), (1, 3, 48, 224)),
        ("int64", ("batch", "tokens"), (1, 128)),
        ("float32", ("batch", "samples"), (1, 16_000)),
        ("float32", ("", "", 80), (1, 128, 80)),
        ("float32", None, (1, 3, 224, 224)),
        ("int64", None, (1, 128)),
        ("float32", (), ()),
    ],
)
def test_a_suggested_shape_makes_sense(dtype, dims, shape):
    assert sensible(dtype, dims, {}) == shape


def test_dimensions_of_one_name_are_suggested_one_size():
    sizes = {}
    assert sensible("float32", ("batch", "n"), sizes) == (1, 128)
    assert sensible("float32", ("n", "n"), sizes) == (128, 128)


@pytest.mark.parametrize(
    ("name", "dims", "shape"),
    [
        ("waveforms", ("batch_size", "N"), (1, 16_000)),
        ("audio", ("length",), (16_000,)),
        ("audio_features", ("batch", "frames", 80), (1, 128, 80)),
        ("scores", ("batch", "N"), (1, 128)),
    ],
)
def test_an_input_for_sound_is_suggested_a_second_long(name, dims, shape):
    assert sensible("float32", dims, {}, name) == shape


BATCH = ("x", TensorProto.FLOAT, ["N", 3, 32, 32])
NAMELESS = ("w", TensorProto.FLOAT, [None, 5])


def test_an_open_batch_is_1_where_nothing_else_is_open():
    inputs = resolve_inputs(PATH, model(BATCH, NAMELESS, FIXED), {})
    assert [item.shape for item in inputs] == [(1, 3, 32, 32), (1, 5), (2, 5)]


@pytest.mark.parametrize(
    "item",
    [
        ("x", TensorProto.FLOAT, ["seq_len", 64]),
        ("x", TensorProto.FLOAT, ["num_points", 3]),
        ("waveform", TensorProto.FLOAT, ["N"]),
        ("x", TensorProto.FLOAT, [4, "N"]),
        ("x", TensorProto.FLOAT, ["N", "M"]),
        ("x", TensorProto.FLOAT, None),
    ],
)
def test_what_is_no_batch_or_not_the_only_open_dimension_is_asked_for(item):
    with pytest.raises(OpenShapes, match="no fixed shape is known for 'x'|for 'waveform'"):
        resolve_inputs(PATH, model(item), {})


def test_an_open_batch_is_not_taken_as_1_beside_an_input_that_lacks_more():
    with pytest.raises(OpenShapes) as caught:
        resolve_inputs(PATH, model(BATCH, IDS), {})
    assert caught.value.advised == ("x=1x3x32x32", "ids=1x128")


def test_a_batch_that_follows_from_the_shape_of_another_input_is_not_taken_as_1():
    mask = ("mask", TensorProto.FLOAT, ["N", 5])
    free = [OpenInput("x", "float32", ("N", 3, 32, 32)), OpenInput("mask", "float32", ("N", 5))]
    given = {"x": InputSpec("x", (4, 3, 32, 32), "")}
    assert open_batches(free, given, {}) == ()
    with pytest.raises(OpenShapes):
        resolve_inputs(PATH, model(BATCH, mask), given)


def test_a_batch_that_was_given_is_not_taken_as_1():
    free = [OpenInput("x", "float32", ("N", 3, 32, 32))]
    assert open_batches(free, {}, {"N": 8}) == ()
    assert open_batches(free, {}, {}) == (OpenBatch("x", "N", (1, 3, 32, 32)),)


@pytest.mark.parametrize(
    ("written", "advised"),
    [
        ("[320, 416]", "x=1x3x320x416"),
        ("640", "x=1x3x640x640"),
        ("[]", "x=1x3x224x224"),
        ("none", "x=1x3x224x224"),
    ],
)
def test_the_size_that_an_exporter_wrote_is_advised(written, advised):
    proto = model(IMAGE)
    helper.set_model_props(proto, {"imgsz": written, "task": "detect"})
    with pytest.raises(OpenShapes) as caught:
        resolve_inputs(PATH, proto, {})
    assert caught.value.advised == (advised,)


def test_a_dimension_that_is_called_a_sum_has_the_sum_of_the_sizes():
    ids = OpenInput("input_ids", "int64", ("batch", "sequence"))
    mask = OpenInput("attention_mask", "int64", ("batch", "past + sequence"))
    past = OpenInput("past_key_values.0.key", "float32", ("batch", 4, "past", 16))
    sizes = {"batch": 1, "sequence": 1, "past": 31}
    shapes = [item.shape for item in resolve(PATH, [ids, mask, past], {}, sizes)]
    assert shapes == [(1, 1), (1, 32), (1, 4, 31, 16)]
    with pytest.raises(OpenShapes) as refused:
        resolve(PATH, [mask, ids, past], {}, {"past": 31})
    assert refused.value.advised[:2] == ("attention_mask=1x159", "input_ids=1x128")
    with pytest.raises(OpenShapes) as refused:
        resolve(PATH, [mask, ids, past], {}, {})
    assert refused.value.advised == (
        "attention_mask=1x256",
        "input_ids=1x128",
        "past_key_values.0.key=1x4x128x16",
    )
