"""What is read of a file, and which files are refused."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.models.model import OpenInput
from autotune.tvm_backend.models.tflite.flatbuffer import Flatbuffer, is_flatbuffer

installed = all(importlib.util.find_spec(name) for name in ("tflite", "ai_edge_litert"))
if not installed:
    warnings.warn(
        "NO TFLITE: models of TensorFlow Lite were not tried; pip install 'autotune-tvm[tflite]'", stacklevel=1
    )


def test_the_content_says_what_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"\x1c\0\0\0TFL3")
    (tmp_path / "model.tflite").write_bytes(b"\x1c\0\0\0ORTM")
    assert is_flatbuffer(tmp_path / "model")
    assert not is_flatbuffer(tmp_path / "model.tflite")
    assert not is_flatbuffer(tmp_path / "missing") and not is_flatbuffer(tmp_path)


@pytest.mark.skipif(installed, reason="the packages are here")
def test_without_the_packages_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m is a TensorFlow Lite model.*pip install 'autotune-tvm\[tflite\]'"):
        Flatbuffer(tmp_path / "m")


def test_inputs_outputs_and_operators(network: Any, tmp_path: Path) -> None:
    words = network.input("words:0", 2, 3, dtype=np.int64)
    scale = network.input("scale", dtype=np.float16)
    made = network.add("EXP", scale, shape=(), dtype=np.float16)
    buffer = Flatbuffer(network.write(tmp_path / "m", made, words))
    assert buffer.inputs() == [OpenInput("words:0", "int64", (2, 3)), OpenInput("scale", "float16", ())]
    assert list(map(buffer.name, buffer.outputs())) == ["exp0", "words:0"]
    (operator,) = buffer.operators()
    assert (operator.name, operator.inputs, operator.outputs) == ("EXP", (scale,), (made,))
    buffer.check()


def test_custom_operators_are_named(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    y = network.add("Warp", network.add("Bend", x, shape=(4,)), shape=(4,))
    with pytest.raises(
        ModelError, match="operator (Bend|Warp) .*it is no operator of TensorFlow Lite; so is it with (Bend|Warp); "
    ):
        Flatbuffer(network.write(tmp_path / "m", y)).check()


def test_operators_with_nothing_but_quantised_weights_are_named(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 1, 4)
    weights = network.quantise(network.constant(np.ones((2, 4), np.int8)))
    y = network.add("FULLY_CONNECTED", x, weights, -1, shape=(1, 2), kind="FullyConnectedOptions")
    with pytest.raises(ModelError, match="operator FULLY_CONNECTED .*: only its weights are quantised; convert"):
        Flatbuffer(network.write(tmp_path / "m", network.add("EXP", y, shape=(1, 2)))).check()


def test_a_name_that_two_tensors_have_is_refused(network: Any, tmp_path: Path) -> None:
    x = network.input("exp0", 4)
    path = network.write(tmp_path / "m", network.add("EXP", x, shape=(4,)))
    with pytest.raises(ModelError, match="several tensors of the name 'exp0'"):
        Flatbuffer(path).check()


def test_an_input_of_texts_is_refused(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    network.graph.tensors[x].type = network.schema.TensorType.STRING
    with pytest.raises(ModelError, match="input 'x' has a type that NumPy lacks"):
        Flatbuffer(network.write(tmp_path / "m", x)).inputs()


def test_damaged_and_missing_files_are_one_line(network: Any, tmp_path: Path) -> None:
    x = network.input("x", 4)
    whole = network.write(tmp_path / "m", network.add("EXP", x, shape=(4,))).read_bytes()
    for size in range(8, len(whole), 64):
        path = tmp_path / "cut"
        path.write_bytes(whole[-size:-4] + b"TFL3" if size % 128 else whole[:size])
        with pytest.raises(ModelError, match="cut is a damaged TensorFlow Lite model: ") as caught:
            Flatbuffer(path).check()
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="cannot read .*No such file"):
        Flatbuffer(tmp_path / "missing")
