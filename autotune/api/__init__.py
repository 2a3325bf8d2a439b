"""The Python interface. It uses the same files and the same daemon as the command line, so both see the same queue.

    import autotune

    job = autotune.submit("model.onnx", trials=400)
    for progress in job.watch():
        print(progress.trials, progress.latency_ms)
    model = job.export("out/").load()
    y = model(x)                                     # NumPy in, NumPy out

`autotune.tune` does the first two steps without a daemon: it runs the queue itself.

Importing this package loads nothing but itself. Every error is an `AutotuneError` with a message of one line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api.compiled import Compiled, compile
    from autotune.api.exported import Exported, load
    from autotune.api.job import Job, Progress
    from autotune.api.queue import jobs, open_job, submit, tune

__all__ = ["Compiled", "Exported", "Job", "Progress", "compile", "jobs", "load", "open_job", "submit", "tune"]

# Each is imported when one of its names is used: who loads a library needs no queue.
_MODULES = {
    "compiled": ("Compiled", "compile"),
    "exported": ("Exported", "load"),
    "job": ("Job", "Progress"),
    "queue": ("jobs", "open_job", "submit", "tune"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
