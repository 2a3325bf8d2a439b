"""Compile and time a whole model while its job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.devices import kind_of
from autotune.errors import WorkerError
from autotune.storage.confirmation import EntryTimes
from autotune.storage.formats import Entry, JobSpec
from autotune.storage.job_files import check_model
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export import inputs, ready_library
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.model_facts import facts_of
from autotune.tvm_backend.export.model_times import TUNED
from autotune.tvm_backend.export.submitted import Submitted, submitted
from autotune.tvm_backend.export.timing import retiming
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison
from autotune.tvm_backend.export.verification.verify_model import library_runtime

_EARLY_S = 20.0  # no further process begins after so many seconds while a job runs


@dataclass(frozen=True)
class EarlyTiming:
    """How a whole model is timed while its job runs.

    Attributes:
        threads: How many threads each runtime uses.
        processes: In how many processes each is timed.
        reference: Whether the model as submitted is timed, where it runs on the device.
    """

    threads: int
    processes: int
    reference: bool


def compile_early(
    workspace: Workspace,
    paths: JobPaths,
    spec: JobSpec,
    library: Path,
    *,
    cuda_graph: bool,
    kept_bytes: int = 0,
) -> None:
    """Compile a model with the best trials of its tasks while its job runs.

    Args:
        workspace: Where the tuning logs are.
        paths: The files of the job.
        library: Where the library is written.
        cuda_graph: Whether its kernels are launched as a CUDA graph, if the job is for CUDA.
        kept_bytes: How large the compiled kernels of the workspace that are kept may be together.

    Raises:
        DamagedFile: The job's copy of the model is not what was submitted.
        DiskProblem: What an export has to know of the library could not be written beside it.
    """
    check_model(paths, spec)
    made_from = ready_library.made_from(workspace, paths, spec)
    fastest = retiming.fastest_trials(workspace, spec, 1, retiming.Replayer(paths, spec))
    best = {hash: trials[0] for hash, trials in fastest.items()}
    graph = cuda_graph and kind_of(spec).launches_graphs
    kept = KeptObjects(workspace.objects, kept_bytes)
    model = JobModel.read(paths, spec)
    model.compile_tuned(best, library, cuda_graph=graph, kept=kept)
    can_be_exported = kind_of(spec).is_local_cpu and kept_bytes
    if can_be_exported and ready_library.has_best(workspace, spec, best):
        ready_library.note(library, made_from, facts_of(model.prepared, spec, model.target))


def time_early(
    paths: JobPaths, spec: JobSpec, library: Path, tasks_ms: Sequence[float], timing: EarlyTiming
) -> list[EntryTimes]:
    """Time a model in fresh processes at each set of shapes. A reference that cannot be run is left out.

    Args:
        paths: The files of the job.
        library: What `compile_early` has written.
        tasks_ms: The sum of the tasks' best times at each set of shapes.
        timing: How it is timed.

    Raises:
        WorkerError: The library cannot be run.
        WorkerCrashed: A process that ran it died.
    """
    entries = zip(submitted(paths, spec), spec.all_entries, tasks_ms, strict=True)
    return [_time_entry(spec, library, model, entry, sum_ms, timing) for model, entry, sum_ms in entries]


def _time_entry(
    spec: JobSpec, library: Path, model: Submitted, entry: Entry, sum_ms: float, timing: EarlyTiming
) -> EntryTimes:
    arrays = inputs.verification_inputs(model, entry.inputs, None, inputs.SEED).arrays
    device = kind_of(spec).runtime
    runtimes = {TUNED: library_runtime(library, device, entry, model)}
    if timing.reference and device == "cpu" and model.is_usual:
        runtimes[model.runtime] = Runtime(model.runtime, model.file, values=spec.values)
    with RuntimeComparison(runtimes, entry.inputs, arrays, timing.threads) as comparison:
        timings = timing.processes * TIMINGS
        reference = {model.runtime}  # it only says what the library is compared with: a process is enough
        try:
            times = comparison.time(timings, once=reference, longest_s=_EARLY_S)
        except WorkerError:
            times = comparison.time(timings, without=reference, longest_s=_EARLY_S)
    ours_ms = tuple(round(value, 5) for value in times[TUNED].turns_ms)
    if model.runtime not in times:
        return EntryTimes(entry.name, ours_ms, sum_ms)
    return EntryTimes(entry.name, ours_ms, sum_ms, model.runtime, round(times[model.runtime].median_ms, 5))
