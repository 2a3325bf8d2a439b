"""The Python interface: the same files and the same daemon as the command line, so that both see one queue.

    import autotune

    job = autotune.submit("model.onnx", trials=400)
    for progress in job.watch():
        print(progress.trials, progress.latency_ms)
    model = job.export("out/").load()
    y = model(x)                                     # NumPy in, NumPy out

    autotune.tune("model.onnx", trials=400).export("out/")     # needs no daemon: runs the queue itself

Importing it loads neither TVM nor NumPy. Every error is an `AutotuneError`; its message is one line.
"""

from __future__ import annotations

from autotune.api.exported import Exported
from autotune.api.job import Job, Progress
from autotune.api.queue import jobs, open_job, submit, tune

__all__ = ["Exported", "Job", "Progress", "jobs", "open_job", "submit", "tune"]
