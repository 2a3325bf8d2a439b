"""`--input NAME=1x3x224x224:float32` gives an input its shape; `--dim` and `--value` give numbers by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.commands.submit.publish import Submission, preview
from autotune.commands.submit.words import (
    dims_texts,
    inputs_texts,
    parse_dims,
    parse_inputs,
    parse_values,
    shape_bindings,
    value_text,
)
from autotune.config import Config
from autotune.errors import BadInput, ModelError
from autotune.options import Constant, InputSpec
from autotune.storage.formats import ShapeBinding


@pytest.mark.parametrize(
    ("text", "name", "shape", "dtype"),
    [
        ("x=1x3x224x224", "x", (1, 3, 224, 224), ""),
        ("x=scalar:float32", "x", (), "float32"),
        ("a=b=1x2", "a=b", (1, 2), ""),
        ("input:0=1x2", "input:0", (1, 2), ""),
        ("my input.1=1x2:uint8", "my input.1", (1, 2), "uint8"),
    ],
)
def test_a_name_a_shape_and_perhaps_a_type(text: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
    assert parse_inputs([text]) == {name: (InputSpec(name, shape, dtype),)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x=",
        "=1x2",
        "1x2",
        "x=1x",
        "x=x1",
        "x=-1x2",
        "x=1.5",
        "x=1x2:",
        "x=1x2:32",
        "x=1,",
        "x=1:f,2",
        "x=Nx3",
        "x=٣",
        "x=1x2\n",
        f"x={'9' * 5000}",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="is not of the form NAME=1x3x224x224"):
        parse_inputs([text])


def test_there_may_be_several_inputs_or_none_and_a_wrong_one_is_named() -> None:
    assert list(parse_inputs(["a=1", "b=2:int32"])) == ["a", "b"]
    assert parse_inputs([]) == {}
    with pytest.raises(BadInput, match="'b'"):
        parse_inputs(["a=1", "b"])


@given(
    name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/]{0,20}", fullmatch=True),
    shape=st.lists(st.integers(1, 4096), max_size=5),
    dtype=st.sampled_from(["", "float32", "int64", "bool", "uint8"]),
)
def test_what_is_written_that_way_is_read_back(name: str, shape: list[int], dtype: str) -> None:
    text = f"{name}={'x'.join(map(str, shape)) or 'scalar'}{':' + dtype if dtype else ''}"
    assert parse_inputs([text]) == {name: (InputSpec(name, tuple(shape), dtype),)}


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)  # a longer name would not fit


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), bind])
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"model\.onnx is a pipe, a device or a socket; give the model's file itself"):
        preview(Submission(tmp_path / "model.onnx"), Config(), print)


@pytest.mark.parametrize(
    "text", ["batch", "=1", "batch=", "batch=1.5", "batch=1x2", "batch=1,", "b=1_0", "b= 2", "b=٣"]
)
def test_a_dimension_that_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="is not of the form NAME=NUMBER, such as batch=1"):
        parse_dims([text])


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_dims, "batch=0", "at least 1"),
        (parse_dims, "batch=2,-1", "at least 1"),
        (parse_inputs, "x=1x0x3", "a dimension of zero"),
    ],
)
def test_a_dimension_below_one_is_refused(parse: Callable[[list[str]], object], text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse([text])


@pytest.mark.parametrize("text", ["a=nan", "a=1,-inf", "a=1e999", "sr", "=1", "sr=", "sr=fast", "sr=1,,2", "sr=,"])
def test_a_value_that_is_no_number_or_that_no_file_can_hold_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not of the form NAME=NUMBER, such as sr=16000"):
        parse_values([text])


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_inputs, ["a=1x2", "b=1", "a=2x2"]),
        (parse_dims, ["a=1", "a=2"]),
        (parse_values, ["a=1", "a=1"]),
    ],
)
def test_a_name_that_is_given_twice_is_refused(parse: Callable[[list[str]], object], texts: list[str]) -> None:
    with pytest.raises(BadInput, match="names 'a' twice"):
        parse(texts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1.0),
        ("a=-0.5", -0.5),
        ("a=1,2.5", [1.0, 2.5]),
        ("a=3,", [3.0]),
        ("a=[]", []),
        ("a=-1e6", -1e6),
        ("a=1234567.25", 1234567.25),
    ],
)
def test_a_value_may_be_a_list_and_is_written_as_it_is_read(text: str, value: Constant) -> None:
    assert parse_values([text]) == {"a": value}
    assert parse_values([f"a={value_text(value)}"]) == {"a": value}


class TestSeveralShapes:
    def test_are_separated_by_commas(self) -> None:
        assert parse_dims(["n=1", "p2o.DynamicDimension.0=32"]) == {"n": (1,), "p2o.DynamicDimension.0": (32,)}
        assert parse_dims(["sequence=32,128"]) == {"sequence": (32, 128)}
        x = parse_inputs(["x=1x3,4x3:float16"])["x"]
        assert x == (InputSpec("x", (1, 3), "float16"), InputSpec("x", (4, 3), "float16"))

    @pytest.mark.parametrize(("parse", "text"), [(parse_dims, "n=8,16,8"), (parse_inputs, "x=1x3,1x3")])
    def test_are_not_given_twice(self, parse: Callable[[list[str]], object], text: str) -> None:
        with pytest.raises(BadInput, match="has the same value twice"):
            parse([text])

    def test_combine_are_named_by_what_varies_and_are_sixteen_at_most(self) -> None:
        bindings = shape_bindings(parse_inputs(["y=1x2,3x2"]), parse_dims(["n=8,16", "batch=1"]))
        assert [binding.name for binding in bindings] == ["n=8,y=1x2", "n=16,y=1x2", "n=8,y=3x2", "n=16,y=3x2"]
        assert bindings[1].dims == {"batch": 1, "n": 16} and bindings[1].inputs == (InputSpec("y", (1, 2), ""),)
        assert shape_bindings({}, {}) == (ShapeBinding("main", (), {}),)
        assert [binding.name for binding in shape_bindings(parse_inputs(["x=1"]), parse_dims(["n=8"]))] == ["main"]
        assert len(shape_bindings({}, {"a": tuple(range(1, 5)), "b": tuple(range(1, 5))})) == 16
        with pytest.raises(BadInput, match="give 17 combinations of shapes; a job takes 16 at most"):
            shape_bindings({}, {"a": tuple(range(1, 18))})

    @pytest.mark.parametrize("words", [["--input", "y=1x2,3x2:int64", "--dim", "batch=1", "--dim", "n=8,16"], []])
    def test_are_written_as_they_were_given(self, words: list[str]) -> None:
        options = list(zip(words[::2], words[1::2], strict=True))
        inputs = parse_inputs([text for option, text in options if option == "--input"])
        dims = parse_dims([text for option, text in options if option == "--dim"])
        assert (inputs_texts(inputs), dims_texts(dims)) == (words[1:2], words[3::2])
