"""Time the library of a whole model as its users would run it, without exporting it."""

from __future__ import annotations

from pathlib import Path

from autotune.storage.formats import Entry, JobSpec
from autotune.storage.job_files import check_model
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export import inputs, retiming
from autotune.tvm_backend.export.files import LIBRARY
from autotune.tvm_backend.export.job_model import JobModel
from autotune.tvm_backend.export.runtime_comparison import TIMINGS, Runtime, RuntimeComparison
from autotune.tvm_backend.export.submitted import Submitted, submitted

_PROCESSES = 5
_SEED = 2026


def time_library(
    workspace: Workspace, paths: JobPaths, spec: JobSpec, threads: int, *, cuda_graph: bool
) -> list[float]:
    """Compile a model with the best trials of its tasks, and time it in fresh processes, one after the other.

    Args:
        workspace: Where the tuning logs are.
        paths: The files of the job.
        spec: The job.
        threads: How many threads it runs on.
        cuda_graph: Whether its kernels are launched as a CUDA graph, if it is for CUDA.

    Returns:
        The median of the timings of each process, in milliseconds. Each process runs the model at one set of shapes;
        of as many processes as there are sets, the slowest counts.

    Raises:
        DamagedFile: The job's copy of the model is not what was submitted.
        WorkerError: The library cannot be run.
        WorkerCrashed: A process that ran it died.
    """
    check_model(paths, spec)
    best = {hash: trials[0] for hash, trials in retiming.fastest_trials(workspace, spec, 1).items()}
    with scratch_folder("confirm") as folder:
        library = Path(folder) / LIBRARY
        JobModel.read(paths, spec).compile_tuned(best, library, cuda_graph=cuda_graph and spec.target_kind == "cuda")
        pairs = zip(submitted(paths, spec), spec.all_entries, strict=True)
        times = [_time_entry(spec, library, model, entry, threads) for model, entry in pairs]
        return [max(turn) for turn in zip(*times, strict=True)]


def _time_entry(spec: JobSpec, library: Path, model: Submitted, entry: Entry, threads: int) -> list[float]:
    """Return the median of the timings of each process at one set of shapes, in milliseconds."""
    arrays = inputs.verification_inputs(model, entry.inputs, None, _SEED).arrays
    runtime = Runtime("library", library, "cuda" if spec.target_kind == "cuda" else "cpu", function=entry.name)
    with RuntimeComparison({LIBRARY: runtime}, entry.inputs, arrays, threads) as comparison:
        return comparison.time(_PROCESSES * TIMINGS)[LIBRARY].turns_ms
