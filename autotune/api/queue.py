"""Submit models to the queue of a workspace, find its jobs, and run it without a daemon."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.api.job import Job
from autotune.commands.budget import Trials
from autotune.commands.draining import DrainingDaemon
from autotune.commands.jobs import open_workspace, select_one
from autotune.commands.submission import Submission
from autotune.commands.submit import submit as submit_job
from autotune.config import load_config
from autotune.errors import BadInput, TimedOut
from autotune.storage.formats import Constant, InputSpec, Precision
from autotune.storage.scratch import scratch_folder

_POLL_S = 0.2


def submit(
    model: str | Path | Any,
    *,
    target: str = "llvm",
    trials: Trials = 0,
    name: str = "",
    inputs: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    values: Mapping[str, Constant] | None = None,
    priority: int = 0,
    seed: int = 0,
    strategy: str = "",
    sampler: str = "",
    fresh: bool = False,
    winograd: bool = True,
    precision: Precision = "fp32",
    deadline: float | None = None,
    within_s: float | None = None,
    stop_at_ms: float | None = None,
    workspace: str | Path = ".",
    progress: Callable[[str], None] = lambda step: None,
) -> Job:
    """Read a model, extract its tuning tasks and put a job into the queue.

    Args:
        model: The path of an ONNX file, of what `torch.export.save` wrote or of a TensorFlow Lite model; an
            `onnx.ModelProto`; or what `torch.export.export` returned.
        target: `llvm` for the CPU of this machine, `cuda`, `simulated`, the name of boards in autotune.toml, or a
            target in JSON.
        trials: How many trials the job may spend. `auto` is what its tasks seem to need, and fewer when more would gain
            little. 0 stands for what autotune.toml says, which is `auto` unless it has a number.
        name: The name of the job; empty for the name of the file, or of the graph.
        inputs: The shapes of inputs that have no fixed shape, by the name of the input.
        dims: The sizes of open dimensions by their names. The model is tuned for all combinations of several sizes.
        values: The values of inputs that are constants, by the name of the input.
        priority: Jobs with a higher priority go first.
        seed: The seed of the search.
        strategy: The search strategy; empty for the one in autotune.toml.
        sampler: `greedy` or `adaptive`; empty for the default of the strategy.
        fresh: Whether only trials that are measured from now on count, and not those in the tuning logs.
        winograd: Whether Winograd's algorithm may be used for 3x3 convolutions on CPUs. It has larger rounding errors.
        precision: `fp16` to compute convolutions and products in fp16, with sums in fp32. CUDA only.
        deadline: When the job should have ended, in epoch seconds; None for no deadline.
        within_s: How many seconds the stages of the job may run for in all; None for no limit.
        stop_at_ms: The job ends when the whole model takes this many milliseconds; None to use its whole budget.
        workspace: The folder with jobs/, logs/ and autotune.toml.
        progress: Called with a description of each step when it starts.

    Returns:
        The job.

    Raises:
        BadInput: The model, the target, an input, the strategy or the name is wrong. Nothing was changed.
        DiskProblem: The workspace cannot be written to.
    """
    root = open_workspace(Path(workspace))
    shapes = {key: (InputSpec(key, tuple(map(int, shape)), ""),) for key, shape in (inputs or {}).items()}
    sizes = {key: (size,) if isinstance(size, int) else tuple(size) for key, size in (dims or {}).items()}
    with _file(model) as path:
        request = Submission(
            path,
            target,
            name,
            trials,
            inputs=shapes,
            dims=sizes,
            values=values or {},
            priority=priority,
            seed=seed,
            strategy=strategy,
            sampler=sampler,
            fresh=fresh,
            winograd=winograd,
            precision=precision,
            deadline=deadline,
            within_s=within_s,
            stop_at_ms=stop_at_ms,
        )
        spec = submit_job(root, load_config(root.config), request, progress)
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


def tune(
    model: str | Path | Any, *, workspace: str | Path = ".", timeout_s: float | None = None, **options: Any
) -> Job:
    """Submit a model and run the queue until its job has ended.

    A daemon is started as a child process and stopped at the end. If another daemon already serves the workspace, that
    one does the work.

    Args:
        model: As in `submit`.
        workspace: As in `submit`.
        timeout_s: How many seconds to wait for the job at most; None for no limit.
        options: The other arguments of `submit`.

    Returns:
        The job, which has ended.

    Raises:
        BadInput: As in `submit`.
        TimedOut: The job has not ended after `timeout_s`. It stays in the queue.
        WorkerCrashed: The daemon exited before the job had ended, or this machine cannot work on the job.
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
