"""`doctor` says in one line what in the environment does not fit together with autotune."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.commands.doctor import clashes

PINNED = {"apache-tvm-ffi": "0.1.14.post1"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def package(folder: Path, name: str, version: str, *needs: str) -> None:
    told = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    told.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {need}" for need in needs),
    ]
    (told / "METADATA").write_text("\n".join(lines) + "\n")


def test_a_package_that_needs_another_version_of_a_pin_is_named(install: Path) -> None:
    package(install, "xgrammar", "0.2", "apache_tvm_ffi>=0.1.15", "numpy")
    package(install, "harmless", "1.0", "apache-tvm-ffi>=0.1", 'apache-tvm-ffi>=9; extra == "new"')
    assert clashes(PINNED) == ["xgrammar 0.2 needs apache_tvm_ffi>=0.1.15, and autotune ==0.1.14.post1"]


def test_what_autotune_needs_and_does_not_have_is_named(install: Path) -> None:
    package(install, "autotune-tvm", "0.1", "scipy>=1.15", "rich>=13", "msgspec", 'matplotlib; extra == "plots"')
    package(install, "scipy", "1.10")
    package(install, "msgspec", "0.19")
    assert clashes(PINNED) == [
        "autotune needs rich>=13, which is not installed",
        "autotune needs scipy>=1.15, and 1.10 is installed",
    ]
