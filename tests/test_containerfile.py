"""The container is built by the README's own commands, on what the README says autotune needs."""

from __future__ import annotations

import re
from pathlib import Path

import tomli
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
README = " ".join((ROOT / "README.md").read_text().split())
LINES = (ROOT / "Containerfile").read_text().splitlines()


def arguments(instruction: str) -> list[str]:
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


def test_the_container_runs_commands_of_the_readme_and_no_others() -> None:
    system, *ours = arguments("RUN")
    assert ours == ["scripts/setup.sh", "scripts/demo.sh"]
    assert "`scripts/demo.sh`" in README and "scripts/setup.sh" in (ROOT / "scripts/demo.sh").read_text()
    assert all((ROOT / command).stat().st_mode & 0o100 for command in ours)
    (package,) = re.findall(r"--no-install-recommends (\S+) &&", system)
    assert f"a linker (`{package}` or " in README


def test_the_python_of_the_container_is_one_that_autotune_runs_on() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [match[1] for image in arguments("FROM") if (match := re.search(r"/python:([0-9.]+)-", image))]
    assert len(versions) == 1 and versions[0] in SpecifierSet(project["requires-python"])


def test_what_git_ignores_is_not_copied() -> None:
    ignored = {line.strip("/*") for line in (ROOT / ".gitignore").read_text().split() if not line.startswith("!")}
    tools = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}  # harmless, and small
    kept_out = {line.strip("/*") for line in (ROOT / ".dockerignore").read_text().split()}
    assert ignored - tools <= kept_out | {"egg-info", ".egg-info"}
