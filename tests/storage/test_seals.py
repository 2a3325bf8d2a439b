"""A seal is of this user, for this purpose, and of this content; its key is the user's alone."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest

from autotune.errors import DiskProblem
from autotune.storage import seals
from autotune.storage.paths import seal_keys
from autotune.storage.seals import digest, file_digest, is_sealed, seal, user_key


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "state" / "autotune" / "seal.key"


def test_a_seal_holds_for_its_content_its_purpose_and_its_user_alone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = seal("library", b"data")
    assert is_sealed("library", b"data", mark)
    assert not is_sealed("library", b"data.", mark)
    assert not is_sealed("on-end", b"data", mark)
    for other in ("", None, 5, "\u00e9", mark[:-1]):
        assert not is_sealed("library", b"data", other)
    handed_on = user_key().decode()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not is_sealed("library", b"data", mark)
    home.unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(seals.VARIABLE, handed_on)
    assert is_sealed("library", b"data", mark) and not home.exists()


def test_the_key_is_made_once_and_private_and_replaced_once_others_may_have_read_it(home: Path) -> None:
    key = user_key()
    assert home.stat().st_mode & 0o777 == 0o600 and home.parent.stat().st_mode & 0o777 == 0o700
    assert user_key() == key
    home.chmod(0o644)
    assert user_key() != key and home.stat().st_mode & 0o777 == 0o600


def test_processes_that_make_the_key_at_once_have_the_same() -> None:
    with get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_key, range(16)))) == 1


def _key(_: int) -> bytes:
    return user_key()


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_torn_key_is_replaced(home: Path, content: bytes) -> None:
    home.parent.mkdir(parents=True)
    home.write_bytes(content)
    home.chmod(0o600)
    assert user_key() == user_key() == home.read_bytes().hex().encode() != content.hex().encode()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_of_this_user_is_no_key_and_the_next_place_is_taken(home: Path, kind: str) -> None:
    home.parent.mkdir(parents=True)
    {"link": lambda: home.symlink_to(home.parent / "elsewhere"), "pipe": lambda: os.mkfifo(home), "folder": home.mkdir}[
        kind
    ]()
    assert user_key() == seal_keys()[1].read_bytes().hex().encode()
    assert not (home.parent / "elsewhere").exists()


def test_without_a_place_there_is_one_line_that_says_what_to_do(home: Path) -> None:
    home.parent.mkdir(parents=True)
    for path in seal_keys():
        path.mkdir()
    with pytest.raises(DiskProblem, match=r"set XDG_STATE_HOME: .*seal\.key"):
        user_key()


def test_a_file_has_the_digest_of_its_content(tmp_path: Path) -> None:
    for content in (b"", b"data", bytes(3 << 20)):
        (tmp_path / "file").write_bytes(content)
        assert file_digest(tmp_path / "file") == digest(content)
