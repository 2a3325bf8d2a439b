"""autotune: tune neural networks for the hardware they run on, many jobs on one machine.

The Python interface is `autotune.api`; its names are those of this package, too, and are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import Compiled, Exported, Job, Progress, compile, jobs, load, open_job, submit, tune

from autotune.version import __version__

__all__ = [
    "Compiled", "Exported", "Job", "Progress", "__version__", "compile", "jobs", "load", "open_job", "submit", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("autotune.api"), name)
