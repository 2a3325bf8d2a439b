"""Weights that an ONNX file keeps in other files: from its own folder they are read, from elsewhere they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError
from autotune.tvm_backend.models.onnx.read import parse_file

WEIGHTS = np.arange(1024, dtype=np.float32)


def save(folder: Path, location: str, **more: str) -> Path:
    """A model in `folder` that says that its weights are at `location`."""
    folder.mkdir()
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024]) for name in "xy")
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1024], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": str(WEIGHTS.nbytes), **more}.items():
        weights.external_data.add(key=key, value=value)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], initializer=[weights])
    (folder / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "model.onnx"


def test_weights_in_its_folder_become_part_of_the_model(tmp_path: Path) -> None:
    path = save(tmp_path / "model", "weights.bin")
    (tmp_path / "model" / "weights.bin").write_bytes(WEIGHTS.tobytes())
    (weights,) = parse_file(path).graph.initializer
    assert not weights.external_data
    assert np.array_equal(numpy_helper.to_array(weights), WEIGHTS)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "ABSOLUTE", "inner/../../secret.bin", "link.bin", "inner/secret.bin"]
)
def test_no_file_elsewhere_is_read(tmp_path: Path, location: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHTS.tobytes())
    path = save(tmp_path / "model", str(secret) if location == "ABSOLUTE" else location)
    (tmp_path / "model" / "link.bin").symlink_to(secret)
    (tmp_path / "model" / "inner").symlink_to(tmp_path)
    with pytest.raises(ModelError, match=r"model\.onnx") as caught:
        parse_file(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", [None, b"", WEIGHTS.tobytes()[:64]])
def test_weights_that_are_missing_or_cut_short_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = save(tmp_path / "model", "weights.bin")
    if content is not None:
        (tmp_path / "model" / "weights.bin").write_bytes(content)
    with pytest.raises(ModelError, match="keeps weights in another file: .*; put the file that it names beside it"):
        parse_file(path)


@pytest.mark.parametrize("location", ["a" * 5000, "b/" * 2500 + "c", "a\0b", "", "\x1b[2J"])
def test_a_location_that_no_file_can_have_is_refused_in_a_short_line(tmp_path: Path, location: str) -> None:
    path = save(tmp_path / "model", location)
    with pytest.raises(ModelError, match=r"model\.onnx keeps weights in another file: ") as caught:
        parse_file(path)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("key", ["offset", "length"])
def test_a_place_that_is_no_number_is_refused_in_a_short_line(tmp_path: Path, key: str) -> None:
    path = save(tmp_path / "model", "weights.bin", **{key: "9" * 5000 + "x"})
    (tmp_path / "model" / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match=r"model\.onnx keeps weights in another file: ") as caught:
        parse_file(path)
    assert len(str(caught.value)) < 400 + len(str(path))
