"""An object file tells which functions it needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.errors import WorkerError
from autotune.tvm_backend.export.writing.source import missing_functions

CODE = """
float expf(float x);
float not_anywhere(float x);
float here(float x) { return x; }
void* (*__TVMBackendAllocWorkspace)(void);
void* (*__TVMFFIFunctionCall)(void);
float f(float x) { return expf(not_anywhere(here(x))); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_what_neither_the_shim_nor_the_c_library_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(CODE)
    subprocess.run(["gcc", "-fPIC", "-fno-builtin", "-c", "a.c"], cwd=tmp_path, check=True)
    assert missing_functions(tmp_path / "a.o") == ["__TVMFFIFunctionCall", "not_anywhere"]


def test_a_file_that_is_no_object_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.o").write_bytes(b"BC\xc0\xde" * 10)
    with pytest.raises(WorkerError, match="something else than an object file"):
        missing_functions(tmp_path / "a.o")
