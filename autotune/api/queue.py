"""Submit models to the queue of a workspace, find its jobs, and run it without a daemon."""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from autotune.api.job import Job, Progress
from autotune.commands.daemon.background import DrainingDaemon
from autotune.commands.durations import duration
from autotune.commands.jobs import open_workspace, select_one
from autotune.commands.submit.publish import Submission
from autotune.commands.submit.publish import submit as submit_job
from autotune.config import load_config
from autotune.errors import BadInput, TimedOut
from autotune.options import TuningOptions, declared
from autotune.storage.model_digest import ModelDigest
from autotune.storage.scratch import scratch_folder

_POLL_S = 0.2
_LINE = 72  # columns, so that a shorter line covers the one before it


Keywords = ParamSpec("Keywords")
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class SubmitKeywords(TuningOptions):
    """The keywords of `submit`."""

    workspace: str | Path = "."
    progress: Callable[[str], None] = lambda step: None


@dataclass(frozen=True, kw_only=True)
class TuneKeywords(SubmitKeywords):
    """The keywords of `tune`."""

    timeout_s: float | None = None


def takes(
    keywords: Callable[Keywords, Given],
) -> Callable[[Callable[[Any, Given], Result]], Callable[Concatenate[Any, Keywords], Result]]:
    """Make of a function of a model and an object one that takes the fields of the object as keywords.

    Type checkers and `help` see the keywords. `OPTIONS` in its docstring becomes a line for each option.
    """

    def decorate(function: Callable[[Any, Given], Result]) -> Callable[Concatenate[Any, Keywords], Result]:
        def call(model: Any, *none: Keywords.args, **given: Keywords.kwargs) -> Result:
            kept: Any = {name: value for name, value in given.items() if value is not None}  # None is left out
            return function(model, keywords(*none, **kept))

        update_wrapper(call, function)
        vars(call)["__signature__"] = _signature(function, keywords)
        options = "\n    ".join(f"{name}: {option.python or option.help}" for name, option in declared())
        call.__doc__ = (inspect.getdoc(function) or "").replace("OPTIONS", options)
        return cast("Callable[Concatenate[Any, Keywords], Result]", call)

    return decorate


def _signature(function: Callable[..., Any], keywords: Callable[..., Any]) -> inspect.Signature:
    model = next(iter(inspect.signature(function).parameters.values()))
    own = inspect.signature(keywords).parameters
    defaults = keywords()
    names = dict.fromkeys([*(name for name, _ in declared()), *own])
    return inspect.Signature([model, *(own[name].replace(default=getattr(defaults, name)) for name in names)])


@takes(SubmitKeywords)
def submit(model: str | Path | Any, keywords: SubmitKeywords) -> Job:
    """Read a model, extract its tuning tasks and put a job into the queue.

    An option that is None is left to autotune.toml.

    Args:
        model: The path of an ONNX file, of what `torch.export.save` wrote or of a TensorFlow Lite model; an
            `onnx.ModelProto`; or what `torch.export.export` returned.
        OPTIONS
        workspace: The folder with jobs/, logs/ and autotune.toml.
        progress: Called with a description of each step when it starts.

    Returns:
        The job.

    Raises:
        BadInput: The model, the target, an input, the strategy or the name is wrong. Nothing was changed.
        DiskProblem: The workspace cannot be written to.
    """
    return _submit(model, keywords)


def _submit(model: str | Path | Any, keywords: SubmitKeywords) -> Job:
    root = open_workspace(Path(keywords.workspace))
    with _file(model) as path:
        spec = submit_job(root, load_config(root.config), Submission(path, keywords), keywords.progress)
    return Job(root, root.job(spec.id, spec.name))


def submit_program(program: Any, name: str, digest: ModelDigest, keywords: SubmitKeywords) -> Job:
    """Submit what `torch.export.export` returned of a module of this name. Errors are those of `submit`."""
    root = open_workspace(Path(keywords.workspace))
    with _file(program) as path:
        submission = Submission(path, keywords, origin=name, digest=digest)
        spec = submit_job(root, load_config(root.config), submission, keywords.progress)
    return Job(root, root.job(spec.id, spec.name))


def jobs(workspace: str | Path = ".") -> list[Job]:
    """Return all jobs of a workspace, the oldest first.

    Args:
        workspace: The folder with jobs/, logs/ and autotune.toml.

    Raises:
        BadInput: The workspace is not a folder.
    """
    root = open_workspace(Path(workspace))
    return [Job(root, paths) for paths in root.job_list()]


def open_job(word: str | int, workspace: str | Path = ".") -> Job:
    """Find a job.

    Args:
        word: Its number, its name, or `last`.
        workspace: The folder with jobs/, logs/ and autotune.toml.

    Raises:
        UnknownJob: There is no such job. The message says which jobs there are.
        BadInput: The workspace is not a folder.
    """
    root = open_workspace(Path(workspace))
    return Job(root, select_one(root, str(word)))


@takes(TuneKeywords)
def tune(model: str | Path | Any, keywords: TuneKeywords) -> Job:
    """Submit a model and run the queue until its job has ended.

    Unless a daemon serves the workspace already, one is started as a child process and stopped at the end.

    Args:
        model: As in `submit`.
        OPTIONS
        workspace: As in `submit`.
        progress: As in `submit`.
        timeout_s: The most seconds to wait for the job; None for no limit.

    Returns:
        The job, which has ended.

    Raises:
        BadInput: As in `submit`.
        TimedOut: The job has not ended after `timeout_s`. It stays in the queue.
        WorkerCrashed: The daemon exited before the job had ended, or this machine cannot work on the job.
    """
    job = _submit(model, keywords)
    limit_s = math.inf if keywords.timeout_s is None else keywords.timeout_s
    deadline = time.monotonic() + limit_s
    with DrainingDaemon(job.workspace) as daemon:
        while True:
            progress = job.progress()
            _show(progress)
            if progress.ended:
                break
            daemon.keep_alive([job.paths])
            if time.monotonic() >= deadline:
                raise TimedOut(f"job {job.id} ({job.name}) has not ended after {limit_s:g} s; it stays in the queue")
            time.sleep(_POLL_S)
    return job


def _show(progress: Progress) -> None:
    """Show the progress of a job in the last line of a terminal, or below the cell of a notebook."""
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return
    latency = "" if progress.latency_ms is None else f", tasks {progress.latency_ms:.4g} ms"
    latency += "" if progress.model_ms is None else f", model {progress.model_ms:.4g} ms"
    left = "" if progress.ended or progress.eta_s is None else f", {duration(progress.eta_s)} left"
    line = f"{progress.state}: {progress.trials} of {progress.budget} trials{latency}{left}"
    sys.stderr.write(f"\r{line:<{_LINE}}" + ("\n" if progress.ended else ""))
    sys.stderr.flush()


@contextmanager
def _file(model: str | Path | Any) -> Iterator[Path]:
    """Yield the path of a model. One that is in memory is written to a temporary file."""
    if isinstance(model, (str, Path)):
        yield Path(model)
        return
    with scratch_folder("model") as folder:
        yield _written(model, Path(folder))


def _written(model: Any, folder: Path) -> Path:
    if type(model).__module__.startswith("torch.export"):
        from autotune.tvm_backend.models.pytorch.program import save

        path = folder / "model.pt2"
        save(model, path)
    elif hasattr(model, "SerializeToString"):
        path = folder / f"{model.graph.name or 'model'}.onnx".replace("/", "_")
        path.write_bytes(model.SerializeToString())
    else:
        raise BadInput(
            "a model is the path of a file, an onnx.ModelProto or an exported program of PyTorch, not"
            f" {type(model).__name__}"
        )
    return path
