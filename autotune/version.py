"""The version of autotune, and the versions of TVM that it was tested with, in one place."""

__version__ = "0.2.0"
TESTED_TVM = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


def installed_version(package: str) -> str:
    """Return the version of a package that is installed, without loading it; empty if none is."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
