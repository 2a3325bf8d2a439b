"""Damage to a library is seen where it is loaded; damage to its mapped weights where these are checked, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import DamagedFile, DiskProblem
from autotune.tvm_backend.export.library_file import LibraryFile, check, described

_WEIGHT = (512, 512)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, target: Any) -> Path:
    """A library with a large weight, which is mapped."""
    from tvm import relax

    from autotune.tvm_backend.export.compilation import JobModel, lower_tuned
    from autotune.tvm_backend.lowering import prepare

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, _WEIGHT[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = relax.const(np.random.default_rng(0).random(_WEIGHT, np.float32))
            output = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(output)
    prepared = prepare(builder.get(), target)
    path = tmp_path_factory.mktemp("exported") / "model.so"
    JobModel(prepared, prepared, (), target)._write(lower_tuned(prepared, (), {}, target), path)
    return path


@pytest.fixture
def copy(library: Path, tmp_path: Path) -> Path:
    (tmp_path / "model.so").write_bytes(library.read_bytes())
    return tmp_path / "model.so"


def test_the_mapped_weights_have_a_digest_of_their_own(library: Path) -> None:
    written = described(library)
    assert written.bytes == library.stat().st_size and written.weights is not None
    assert 4 * 512 * 512 <= written.weights.bytes < 4 * 512 * 512 + 256
    check(library, written, weights=True)


def places(written: LibraryFile) -> Iterator[tuple[int, bool]]:
    """Places in a library, and whether they are in the weights."""
    assert written.weights is not None
    end = written.weights.first + written.weights.bytes
    yield from ((place, False) for place in (0, 64, written.weights.first - 1, end, written.bytes - 1))
    yield from ((place, True) for place in (written.weights.first, (written.weights.first + end) // 2, end - 1))


def test_a_changed_byte_is_seen_wherever_it_is(copy: Path) -> None:
    written = described(copy)
    content = copy.read_bytes()
    for place, in_weights in places(written):
        copy.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DamagedFile, match=r"its weights" if in_weights else r"its code"):
            check(copy, written, weights=True)
        if in_weights:
            check(copy, written, weights=False)
        else:
            with pytest.raises(DamagedFile, match=r"its code .* not what was written; export the job again"):
                check(copy, written, weights=False)


@pytest.mark.parametrize("size", [0, 1, 100, 5000, -1, 1 << 30])
def test_another_size_is_seen_before_anything_is_mapped(copy: Path, size: int) -> None:
    written = described(copy)
    os.truncate(copy, size % written.bytes if size < written.bytes else size)
    with pytest.raises(DamagedFile, match=rf"has \d+ bytes, and {written.bytes} were written"):
        check(copy, written, weights=False)


def test_weights_beyond_the_end_are_seen(copy: Path) -> None:
    written = described(copy)
    assert written.weights is not None
    with pytest.raises(DamagedFile):
        check(copy, replace(written, weights=replace(written.weights, bytes=written.bytes)), weights=False)


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01" + bytes(20), b"\x7fELF\x02\x01" + bytes(300)])
def test_a_file_without_sections_has_no_mapped_weights(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.so").write_bytes(content)
    written = described(tmp_path / "model.so")
    assert written.weights is None
    check(tmp_path / "model.so", written, weights=True)


def test_a_library_that_is_not_there_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(DiskProblem, match="cannot read"):
        check(tmp_path / "model.so", LibraryFile(1, "0" * 64), weights=False)
