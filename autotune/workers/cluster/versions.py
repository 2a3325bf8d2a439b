"""Whether a node has the same autotune and the same TVM as the daemon: their files and times must fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Versions = Mapping[str, str]


def probe() -> Callable[[], dict[str, str]]:
    """Return a function that says which versions a machine has.

    It travels to the node as code, because the node may lack autotune: a nested function does, one of a module is
    imported there.
    """

    def versions() -> dict[str, str]:
        from importlib import metadata

        installed = {}
        for package in ("autotune", "apache-tvm", "apache-tvm-ffi"):
            try:
                installed[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                installed[package] = ""
        try:
            from autotune.version import __version__

            installed["autotune"] = __version__
        except ImportError:
            installed["autotune"] = ""
        return installed

    return versions


def fault(here: Versions, there: Versions) -> str:
    """Return how the versions of a node differ from those of the daemon's machine; empty if they do not."""
    wrong = [
        f"{package} {there.get(package) or 'missing'} in place of {version or 'none'}"
        for package, version in here.items()
        if there.get(package, "") != version
    ]
    return ", ".join(wrong)
