"""Put models into the queue of a workspace, find jobs in it, and run it without a daemon."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune import config as settings
from autotune.api.job import Job
from autotune.commands.draining import DrainingDaemon
from autotune.commands.jobs import select_one
from autotune.commands.submit import Submission
from autotune.commands.submit import submit as publish
from autotune.errors import BadInput, TimedOut
from autotune.storage.formats import InputSpec
from autotune.storage.paths import Workspace

_POLL_S = 0.2


def submit(
    model: str | Path | Any,
    *,
    target: str = "llvm",
    trials: int = 0,
    name: str = "",
    inputs: Mapping[str, Sequence[int]] | None = None,
    priority: int = 0,
    seed: int = 0,
    strategy: str = "",
    sampler: str = "",
    fresh: bool = False,
    winograd: bool = True,
    deadline: float | None = None,
    workspace: str | Path = ".",
    progress: Callable[[str], None] = lambda step: None,
) -> Job:
    """Read a model, extract its tuning tasks and put a job into the queue.

    Args:
        model: the path of an ONNX file, or an `onnx.ModelProto`.
        target: `llvm` (this machine), `cuda`, `simulated`, or a target in JSON.
        trials: the budget; 0: as in autotune.toml.
        name: the name of the job; by default the file's, or `model`.
        inputs: shapes by the name of the input, for inputs without a fixed one.
        deadline: when the job should have ended, in epoch seconds.
        workspace: the folder with jobs/, logs/ and autotune.toml.
        progress: told each step of reading the model.

    Raises:
        BadInput: the model, the target, an input, the strategy or the name is wrong; nothing was changed.
        DiskProblem: the workspace cannot be written.
    """
    root = _workspace(workspace)
    shapes = {key: InputSpec(key, tuple(map(int, shape)), "") for key, shape in (inputs or {}).items()}
    with _file(model) as path:
        request = Submission(
            path, target, name, trials, 0, shapes, priority, seed, fresh, deadline, strategy, sampler, winograd
        )
        spec = publish(root, settings.load(root.config), request, progress)
    return Job(root, root.job(spec.id, spec.name))


def jobs(workspace: str | Path = ".") -> list[Job]:
    """All jobs of a workspace, oldest first."""
    root = _workspace(workspace)
    return [Job(root, paths) for paths in root.job_list()]


def open_job(word: str | int, workspace: str | Path = ".") -> Job:
    """The job that a number, a name or `last` names.

    Raises:
        UnknownJob: there is no such job; says which there are.
    """
    root = _workspace(workspace)
    return Job(root, select_one(root, str(word)))


def tune(
    model: str | Path | Any, *, workspace: str | Path = ".", timeout_s: float | None = None, **options: Any
) -> Job:
    """Submit a model and run the queue until its job has ended. Takes the options of `submit`.

    Starts a daemon as a child process and stops it at the end. Where a daemon serves the workspace already, that one
    does the work.

    Raises:
        BadInput: as for `submit`.
        TimedOut: the job has not ended within `timeout_s`; it stays in the queue.
        WorkerCrashed: the daemon left before the job had ended, or nothing can be done for the job on this machine.
    """
    job = submit(model, workspace=workspace, **options)
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    with DrainingDaemon(job.workspace) as daemon:
        while not job.progress().ended:
            daemon.keep_alive([job.paths])
            if time.monotonic() >= deadline:
                raise TimedOut(f"job {job.id} ({job.name}) has not ended after {timeout_s:g} s; it stays in the queue")
            time.sleep(_POLL_S)
    return job


def _workspace(folder: str | Path) -> Workspace:
    if not Path(folder).is_dir():
        raise BadInput(f"the workspace {folder} is not a folder")
    return Workspace(Path(folder))


@contextmanager
def _file(model: str | Path | Any) -> Iterator[Path]:
    """The path of a model, which is written to a temporary file if it is an `onnx.ModelProto`."""
    if isinstance(model, (str, Path)):
        yield Path(model)
        return
    if not hasattr(model, "SerializeToString"):
        raise BadInput(f"a model is the path of an ONNX file or an onnx.ModelProto, not {type(model).__name__}")
    with tempfile.TemporaryDirectory(prefix="autotune-model-") as folder:
        path = Path(folder) / f"{model.graph.name or 'model'}.onnx".replace("/", "_")
        path.write_bytes(model.SerializeToString())
        yield path
