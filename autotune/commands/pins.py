"""Clashes between what autotune needs and what is installed beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_OURS = "autotune"


def clashes(pinned: Mapping[str, str]) -> list[str]:
    """Return what in this environment does not fit together with autotune, a line each.

    Args:
        pinned: The versions of packages without which autotune does not work.
    """
    installed = list(metadata.distributions())
    versions = {str(canonicalize_name(found.metadata["Name"] or "")): found.version for found in installed}
    lines = [*_unmet(versions), *_demands_of_others(installed, pinned)]
    return sorted(set(lines))


def _unmet(versions: Mapping[str, str]) -> Iterator[str]:
    """Yield the requirements of autotune that are not met. Where it is not installed, it has none."""
    with suppress(metadata.PackageNotFoundError):
        for need in _requirements(metadata.requires(_OURS)):
            found = versions.get(canonicalize_name(need.name))
            if found is None:
                yield f"autotune needs {need.name}{need.specifier}, which is not installed"
            elif not need.specifier.contains(found, prereleases=True):
                yield f"autotune needs {need.name}{need.specifier}, and {found} is installed"


def _demands_of_others(installed: Iterable[metadata.Distribution], pinned: Mapping[str, str]) -> Iterator[str]:
    """Yield the packages that need another version of what autotune pins."""
    for other in installed:
        name = other.metadata["Name"] or "?"
        for need in _requirements(other.requires) if canonicalize_name(name) != _OURS else ():
            version = pinned.get(canonicalize_name(need.name))
            if version is not None and not need.specifier.contains(version, prereleases=True):
                yield f"{name} {other.version} needs {need.name}{need.specifier}, and autotune =={version}"


def _requirements(lines: Iterable[str] | None) -> Iterator[Requirement]:
    """Yield the requirements that apply here; those of extras do not."""
    for line in lines or ():
        with suppress(InvalidRequirement):
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                yield need
