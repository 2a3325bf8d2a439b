"""The page on dependencies names all that pip installs for users."""

from __future__ import annotations

import re
from pathlib import Path

import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"suite", "docs", "dev"}


def test_every_dependency_has_its_licence() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *(need for name in extras.keys() - FOR_DEVELOPERS for need in extras[name])]
    page = (ROOT / "docs" / "reference" / "stability.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"[\w-]+", row)}
    assert {Requirement(need).name for need in needs} <= named
