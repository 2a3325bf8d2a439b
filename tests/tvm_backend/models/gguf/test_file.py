"""A GGUF file is read within its bounds, and what is wrong with it is said in one line."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.models.gguf.file import GgufFile, is_gguf
from autotune.tvm_backend.models.gguf.network import read_network

from ....gguf_files import File, Part, decoder, tensor

SMALL = File({"general.name": "a", "list": [1, 2]}, {"one": tensor("F32", 4, 8), "two": tensor("Q4_0", 2, 32)})


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path} is a damaged GGUF file: ")
    return line.removeprefix(f"{path} is a damaged GGUF file: ")


def test_values_and_tensors_are_where_the_file_says(tmp_path: Path) -> None:
    file = GgufFile(SMALL.write(tmp_path / "a.gguf"))
    assert file.values == {"general.name": "a", "list": [1, 2]}
    assert {name: (item.shape, item.format.name) for name, item in file.tensors.items()} == {
        "one": ((4, 8), "F32"),
        "two": ((2, 32), "Q4_0"),
    }
    for name, part in SMALL.parts.items():
        assert file.raw(file.tensors[name]).tobytes() == part.data


def test_the_content_says_what_is_a_gguf_file(tmp_path: Path) -> None:
    assert is_gguf(SMALL.write(tmp_path / "a.onnx"))
    (tmp_path / "b.gguf").write_bytes(b"GG")
    assert not is_gguf(tmp_path / "b.gguf")
    assert not is_gguf(tmp_path / "missing.gguf")


def test_a_cut_file_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    data = SMALL.encoded()
    whole = len(data) - (-len(SMALL.parts["two"].data) % 32)
    for end in (*range(4, 200), whole - 1):
        assert any(
            word in refused(tmp_path / "a.gguf", data[:end]) for word in ("it ends", "ends after", "ends before")
        )


@pytest.mark.parametrize(
    ("place", "number", "reason"),
    [
        (4, struct.pack("<I", 9), "it is of version 9"),
        (8, struct.pack("<Q", 1 << 60), "it says that it has 1152921504606846976 tensors"),
        (16, struct.pack("<Q", 1 << 60), "it says that it has 2 tensors and 1152921504606846976 values"),
        (24, struct.pack("<Q", 1 << 60), "a name has 1152921504606846976 bytes"),
        (44, struct.pack("<I", 77), "a value is of type 77, which is not known"),
        (48, struct.pack("<Q", 1 << 60), "in the middle of 1152921504606846976 bytes"),
    ],
)
def test_a_number_that_cannot_be_is_refused(tmp_path: Path, place: int, number: bytes, reason: str) -> None:
    data = SMALL.encoded()
    assert reason in refused(tmp_path / "a.gguf", data[:place] + number + data[place + len(number) :])


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (File({"key": b"\xff\xfe"}, {}), "no UTF-8"),
        (File({"general.alignment": 24}, {}), "general.alignment is 24, and not a power of two"),
        (File({}, {"a": tensor("F32", 8), "b": tensor("F32", 8)}, {"b": 0}), "tensors 'a' and 'b' overlap"),
        (File({}, {"a": tensor("F32", 8)}, {"a": 1 << 40}), "tensor 'a' ends after the file"),
        (File({}, {"a": tensor("F32", 8)}, {"a": 8}), "begins at byte 8, no multiple of 32"),
        (File({}, {"a": Part((1 << 60, 32), "F32", b"")}), "cannot have the shape"),
        (File({}, {"a": Part((0, 32), "F32", b"")}), "cannot have the shape"),
        (File({}, {"a": Part((2, 48), "Q4_0", b"")}), "have 48 elements, no multiple of 32"),
        (File({}, {"a\nb": Part((2, 48), "Q4_0", b"")}), "no multiple of 32"),
        (File({}, {"a": Part((1, 1, 1, 1, 1), "F32", b"")}), "has 5 dimensions"),
        (File({}, {"a" * 2000: tensor("F32", 8)}), "a name has 2000 bytes"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, file: File, reason: str) -> None:
    assert reason in refused(tmp_path / "a.gguf", file.encoded())


def test_an_unknown_way_of_storing_elements_is_named(tmp_path: Path) -> None:
    data = bytearray(File({}, {"weights": tensor("F32", 8)}).encoded())
    place = data.index(b"weights") + len(b"weights") + 4 + 8
    data[place : place + 4] = struct.pack("<I", 16)
    assert "tensor 'weights' is of type 16, which is not known; known are F32" in refused(
        tmp_path / "a.gguf", bytes(data)
    )


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    for name in ("missing.gguf", "empty.gguf"):
        with pytest.raises(ModelError, match=f"cannot read .*{name}"):
            GgufFile(tmp_path / name)


def mutate(path: Path, count: int, seed: int) -> int:
    """Change a few bytes of a decoder's file so many times, and return how many of these are refused, in one line."""
    rng = np.random.default_rng(seed)
    data = decoder("llama", layers=1, vocabulary=32).encoded()
    begin = len(data) - sum(
        -(-len(part.data) // 32) * 32 for part in decoder("llama", layers=1, vocabulary=32).parts.values()
    )
    refusals = 0
    for _ in range(count):
        changed = bytearray(data)
        for place in rng.integers(0, begin, rng.integers(1, 4)):
            changed[place] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        path.write_bytes(changed[: rng.integers(begin) if rng.random() < 0.1 else None])
        try:
            read_network(path)
        except ModelError as error:
            assert "\n" not in str(error)
            refusals += 1
    return refusals


def test_mutants_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert 100 < mutate(tmp_path / "a.gguf", 400, seed=1) < 400


@pytest.mark.slow
def test_20_000_mutants_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert 5_000 < mutate(tmp_path / "a.gguf", 20_000, seed=2) < 20_000
