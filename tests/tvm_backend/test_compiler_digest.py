"""Whatever changes in the compiler, its digest changes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import pytest

from autotune.tvm_backend import compiler_digest as room

FILES = dict(room.files_of(resources.files("autotune.tvm_backend")))


@pytest.fixture
def digest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The digest of a compiler with these files."""

    def of(files: dict[str, bytes]) -> str:
        monkeypatch.setattr(room, "files_of", lambda folder: list(files.items()))
        return room.compiler_digest.__wrapped__()

    return of


def test_it_covers_what_programs_are_made_lowered_and_written_with() -> None:
    assert {
        "/codegen/lowering_passes.py",
        "/threads/pool.ll",
        "/isa/avx512.py",
        "/isa/amx.h",
        "/vector_math/registry.py",
        "/export/writing/program/main.cpp",
    } <= set(FILES)


def test_it_is_the_same_in_another_process_and_order(digest: Callable[..., str]) -> None:
    assert digest(dict(reversed(FILES.items()))) == room.compiler_digest.__wrapped__()


def test_it_is_another_with_a_changed_a_renamed_or_a_missing_file(
    digest: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {**FILES, "/codegen/lowering_passes.py": FILES["/codegen/lowering_passes.py"] + b"#"}
    renamed = {("/x.py" if name == "/codegen/lowering_passes.py" else name): content for name, content in FILES.items()}
    missing = {name: content for name, content in FILES.items() if name != "/codegen/lowering_passes.py"}
    digests = [digest(files) for files in (FILES, changed, renamed, missing)]
    monkeypatch.setattr(room, "__version__", "another")
    digests.append(digest(FILES))
    monkeypatch.setattr(room, "TESTED_TVM", {"apache-tvm": "another"})
    digests.append(digest(FILES))
    assert len(set(digests)) == len(digests)
