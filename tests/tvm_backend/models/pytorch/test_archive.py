"""Archives of PyTorch: told by content, and copied without what torch would unpickle."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import ModelError
from autotune.tvm_backend.models.pytorch.archive import is_archive, read_archive, write_archive


def test_the_content_says_what_it_is(words: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as opened:
        opened.writestr("a.txt", "a")
    assert is_archive(words)
    assert not is_archive(other) and not is_archive(tmp_path / "missing") and not is_archive(Path(__file__))


def test_a_copy_has_the_weights_and_nothing_to_unpickle(words: Path, tmp_path: Path) -> None:
    archive = read_archive(words)
    to = tmp_path / "model.pt2"
    write_archive(archive, archive.program, to)
    with zipfile.ZipFile(words) as before, zipfile.ZipFile(to) as after:
        assert before.read("words/data/sample_inputs/model.pt")
        assert after.read("model/data/sample_inputs/model.pt") == b""
        for name in (f"data/weights/weight_{index}" for index in range(3)):
            assert before.read(f"words/{name}") == after.read(f"model/{name}")
    assert read_archive(to).program == archive.program


@pytest.mark.parametrize("member", ["archive/data.pkl", "m/data.pkl", "serialized_exported_program.json"])
def test_files_of_torch_that_hold_no_exported_program_are_refused_with_the_way_out(tmp_path: Path, member: str) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr(member, b"\x80\x02.")
    assert is_archive(path)
    with pytest.raises(ModelError, match=r"unpickles nothing: write the model with torch\.export\.save"):
        read_archive(path)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("data/weights/model_weights_config.json", {"use_pickle": True}),
        ("data/weights/model_weights_config.json", {"path_name": "../../weight_0"}),
        ("data/weights/model_weights_config.json", {"tensor_meta": None}),
        ("data/constants/model_constants_config.json", {"path_name": "custom_obj_0"}),
        ("data/constants/model_constants_config.json", {"path_name": "opaque_obj_0"}),
    ],
)
def test_what_is_stored_as_a_pickle_is_refused(
    spoilt: Callable[..., Path], table: str, change: dict[str, object]
) -> None:
    def pickle(members: dict[str, bytes]) -> None:
        weights = json.loads(members["data/weights/model_weights_config.json"])["config"]
        config = {"config": {"table.weight": {**weights["table.weight"], **change}}}
        members[table] = json.dumps(config).encode()

    with pytest.raises(ModelError, match=r"'table\.weight' is stored as a pickle; autotune unpickles nothing"):
        read_archive(spoilt(pickle))


@pytest.mark.parametrize("name", ["models/model.json", "data/weights/model_weights_config.json"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{"])
def test_a_damaged_archive_is_one_line(spoilt: Callable[..., Path], name: str, data: bytes) -> None:
    with pytest.raises(ModelError, match="damaged archive of PyTorch"):
        read_archive(spoilt(lambda members: members.update({name: data})))


def test_a_weight_that_is_missing(spoilt: Callable[..., Path], tmp_path: Path) -> None:
    archive = read_archive(spoilt(lambda members: members.pop("data/weights/weight_1")))
    with pytest.raises(ModelError, match="damaged archive of PyTorch.*weight_1"):
        write_archive(archive, archive.program, tmp_path / "model.pt2")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": 7}, "'config' must be an object, not a whole number"),
        ({}, "'config' is missing"),
        ({"config": {"w": None}}, "'config.w' must be an object"),
        ({"config": {"w": {"path_name": "weight_0", "tensor_meta": {}}}}, "'config.w.use_pickle' is missing"),
        (
            {"config": {"w": {"path_name": 3, "use_pickle": False, "tensor_meta": {}}}},
            "'config.w.path_name' must be text",
        ),
        (
            {"config": {"w": {"path_name": "weight_0", "use_pickle": 0, "tensor_meta": {}}}},
            "'config.w.use_pickle' must be true or false",
        ),
        (
            {"config": {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": "x"}}},
            "'config.w.tensor_meta' must be an object",
        ),
    ],
)
@pytest.mark.parametrize(
    "table", ["data/weights/model_weights_config.json", "data/constants/model_constants_config.json"]
)
def test_a_table_of_another_form_is_refused_in_a_line(
    spoilt: Callable[..., Path], table: str, change: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelError, match="is a damaged archive of PyTorch: ") as caught:
        read_archive(spoilt(lambda members: members.update({table: json.dumps(change).encode()})))
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_nothing_is_unpacked(words: Path) -> None:
    """A few hundred bytes may become gigabytes."""
    with zipfile.ZipFile(words) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    with zipfile.ZipFile(words, "w") as opened:
        for name, data in members.items():
            packed = name.endswith("weight_0")
            opened.writestr(name, bytes(1 << 24) if packed else data, zipfile.ZIP_DEFLATED if packed else None)
    with pytest.raises(ModelError, match=r"has 'words/data/weights/weight_0' compressed, as torch.export.save writes"):
        read_archive(words)


def test_a_member_that_lies_in_the_file_twice_is_not_read_twice(words: Path) -> None:
    with zipfile.ZipFile(words, "a") as opened:
        (largest,) = sorted(opened.infolist(), key=lambda item: item.file_size)[-1:]
        for number in range(64):
            again = copy.copy(largest)
            again.filename = f"words/data/weights/weight_{100 + number}"
            opened.filelist.append(again)
            opened.NameToInfo[again.filename] = again
        opened._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="is a damaged archive of PyTorch: its members are larger than it is"):
        read_archive(words)


def test_a_member_whose_name_is_not_unicode_makes_it_no_archive(words: Path) -> None:
    with zipfile.ZipFile(words, "a") as opened:
        opened.writestr("words/\u00e9", b"")
    words.write_bytes(words.read_bytes().replace("words/\u00e9".encode(), b"words/\xff\xff"))
    assert not is_archive(words)
    with pytest.raises(ModelError, match="is a damaged archive of PyTorch"):
        read_archive(words)
