"""The page on dependencies names all that pip installs for users, and which versions."""

from __future__ import annotations

import re
from pathlib import Path

import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"suite", "docs", "dev"}


PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "reference" / "stability.md").read_text()


def test_every_dependency_has_its_licence_and_its_versions() -> None:
    extras = PROJECT["optional-dependencies"]
    needs = [*PROJECT["dependencies"], *(need for name in extras.keys() - FOR_DEVELOPERS for need in extras[name])]
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("|")]
    versions = {name: cell for names, cell in rows for name in re.findall(r"[\w-]+", names)}
    for requirement in map(Requirement, needs):
        wanted = {str(part).removeprefix("==") for part in requirement.specifier}
        assert wanted <= set(re.split("[, ]+", versions[requirement.name])), requirement


def test_the_versions_of_python_are_those_of_the_project() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert all("Python 3.11 to 3.13" in " ".join(page.split()) for page in (PAGE, (ROOT / "README.md").read_text()))
