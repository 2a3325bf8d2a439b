"""A file that processes print to is moved away when it is too long, and they go on printing."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.workers.worker_pool import shorten


def earlier(path: Path) -> Path:
    """Where the text of a file goes that was there before."""
    return path.with_name(f"{path.name}.1")


def test_a_file_that_is_not_too_long_or_cannot_be_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker-llvm.log"
    shorten(path, 10)
    path.write_bytes(b"0123456789")
    shorten(path, 10)
    assert (path.read_bytes(), earlier(path).exists()) == (b"0123456789", False)

    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("os.replace", refuse)
    shorten(path, 9)
    assert path.read_bytes() == b"0123456789"


def test_who_has_the_file_open_prints_on_in_it(tmp_path: Path) -> None:
    path = tmp_path / "worker-llvm.log"
    with path.open("ab", buffering=0) as printing:
        printing.write(b"first " * 5)
        shorten(path, 12)
        printing.write(b"second")
        assert (path.read_bytes(), earlier(path).read_bytes()) == (b"second", b"first first ")
        printing.write(b" third third")
        shorten(path, 12)
        assert (path.read_bytes(), earlier(path).read_bytes()) == (b"", b" third third")
