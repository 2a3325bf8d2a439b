"""The map of the rooms in docs/explanation/architecture.md is the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
ROOMS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "scripts").rglob("README.md"))
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def mapped() -> set[str]:
    """Folders and files of the map, relative to the package."""
    paths = set()
    parent = ""
    for line in PAGE.split("## The rooms")[1].split("\nImports")[0].splitlines():
        if match := re.match(r"^( {6,8})([a-z_]+(/|\.py)) ", line):
            name = match[2].rstrip("/")
            parent = name if len(match[1]) == 6 else parent
            paths.add(name if len(match[1]) == 6 else f"{parent}/{name}")
    return paths


def test_every_room_is_on_the_map() -> None:
    rooms = {folder.parent.relative_to(ROOT / "autotune") for folder in (ROOT / "autotune").rglob("__init__.py")}
    top = {str(room) for room in rooms if len(room.parts) == 1}
    assert top <= mapped()


def test_the_map_names_nothing_else() -> None:
    assert [name for name in mapped() if not (ROOT / "autotune" / name).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_files_that_a_page_names_exist(page: str) -> None:
    missing = [name for name in named(page) if not (ROOT / "autotune" / name.removeprefix("autotune/")).is_file()]
    assert not missing


def test_pages_name_files() -> None:
    assert named("CONTRIBUTING.md") and named("docs/explanation/architecture.md")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", *ROOMS])
def test_modules_below_a_room_that_a_page_names_exist(page: str) -> None:
    dotted = re.findall(r"`(autotune(?:\.[a-z_]+){2,})`", (ROOT / page).read_text())
    files = [name.replace(".", "/") for name in dotted]
    assert [name for name in files if not ((ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file())] == []


def named(page: str) -> list[str]:
    """The modules that a page names."""
    rooms = "|".join(sorted({name.partition("/")[0] for name in mapped() if not name.endswith(".py")}))
    return re.findall(rf"`((?:autotune/)?(?:{rooms})/[a-z_/]+\.py)`", (ROOT / page).read_text())


def test_an_installation_has_every_file_of_the_package_that_is_no_python() -> None:
    declared = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {package.replace(".", "/"): patterns for package, patterns in declared.items()}
    packed = {path for folder, patterns in folders.items() for name in patterns for path in (ROOT / folder).glob(name)}
    there = {path for path in (ROOT / "autotune").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed and {path for path in there if path.suffix != ".py"} == packed
