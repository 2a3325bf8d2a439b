"""The steps of an export: build the best candidates again, time them, compile, verify, compare and write."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.processes.messages import ExportRequest
from autotune.storage.atomic import make_folders, remove_temporaries
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.submitted import ExportJob, submitted
from autotune.tvm_backend.export.timing import retiming
from autotune.tvm_backend.export.timing.whole_model import TUNED, UNTUNED, WITHOUT_GRAPH, choose_inputs, compare
from autotune.tvm_backend.export.waiting import Leases
from autotune.tvm_backend.export.writing import output_folder
from autotune.tvm_backend.export.writing.files import LIBRARY, SOURCE
from autotune.tvm_backend.export.writing.report import KernelLimits, KernelWork, kernel_work, report
from autotune.tvm_backend.export.writing.source import Described, write_source
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.roofline import Roofline, measure
from autotune.tvm_backend.kernels.run import Runner, Timing, open_device
from autotune.tvm_backend.kernels.run_gpu import GpuRunner
from autotune.tvm_backend.search.tasks import read_program
from autotune.tvm_backend.target import tvm_target
from autotune.version import __version__

_TURN_MS = 20
_SPIN_UP_MS = 200


def export(
    request: ExportRequest, workspace: Workspace, paths: JobPaths, spec: JobSpec, leases: Leases
) -> dict[str, Any]:
    """Export a job. TVM is loaded.

    Returns:
        The report, as in `report.json`.

    Raises:
        VerificationError: The outputs of the compiled model differ from those of the model as submitted.
    """
    job = ExportJob(request, workspace, paths, spec, submitted(paths, spec))
    applies = retiming.Replayer(paths, spec)
    fastest = retiming.fastest_trials(workspace, spec, request.contenders, applies)
    again = _retime(job, fastest, leases)
    best = {hash: trials[0] for hash, trials in fastest.items()} | {hash: item.trial for hash, item in again.items()}
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=_made(Path(request.output))) as folder:
        libraries = _libraries(job, Path(folder))
        with leases.one_cpu():
            leases.progress("compiling the tuned model")
            inputs = choose_inputs(job)
            rows = [chosen.rows for chosen in inputs]
            work = _compile(job, best, libraries, rows[0], leases)
        with leases.comparison():
            entries = zip(spec.all_entries, inputs, strict=True)
            comparisons = [compare(job, entry, chosen, libraries) for entry, chosen in entries]
            limits = _limits(job)
        content = report(spec, request, best, again, comparisons, KernelLimits(work, limits))
        content |= {"set_aside": _set_aside(spec, applies.set_aside, retiming.claims(workspace, spec))}
        content |= {"size_mb": output_folder.sizes(job, libraries[TUNED])}
        output_folder.write(job, libraries[TUNED], content, [item.outputs for item in comparisons], rows)
    return content


def _set_aside(
    spec: JobSpec, trials: Mapping[str, Sequence[retiming.SetAside]], claims: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the part of the report on trials that were not used: those that do not apply, and what others claim."""
    names = {task.hash: task.name for task in spec.tasks}
    refused = [{"task": names[task], **asdict(item)} for task, items in trials.items() for item in items]
    untimed = "{} imported trials were not timed here, and this workspace has none of its own; let the daemon run"
    reasons = [(names[task], untimed.format(count)) for task, count in claims.items() if count]
    return refused + [{"task": name, "hash": None, "best_us": None, "reason": reason} for name, reason in reasons]


def _retime(
    job: ExportJob, fastest: Mapping[str, Sequence[Trial]], leases: Leases
) -> dict[str, retiming.RetimedCandidate]:
    """Build the best candidates of each task again, time them, and return the fastest correct one of each task."""
    with scratch_folder("export") as folder:
        with leases.one_cpu():
            built = _build_again(job, fastest, Path(folder), leases)
        return _time_again(job, built, leases) if built else {}


def _build_again(
    job: ExportJob, fastest: Mapping[str, Sequence[Trial]], folder: Path, leases: Leases
) -> dict[str, list[retiming.RetimedCandidate]]:
    target = tvm_target(job.spec.target)
    indices = {task.hash: index for index, task in enumerate(job.spec.tasks)}
    hashes = retiming.tasks_to_retime(job.spec, fastest)
    built = {}
    for number, hash in enumerate(hashes):
        leases.progress(f"building the best candidates of each task again ({number + 1} of {len(hashes)} tasks)")
        program = read_program(job.paths.task(indices[hash]), hash)
        built[hash] = retiming.build(fastest[hash], program, target, folder)
    return built


def _time_again(
    job: ExportJob, built: Mapping[str, Sequence[retiming.RetimedCandidate]], leases: Leases
) -> dict[str, retiming.RetimedCandidate]:
    device = open_device(job.spec.target_kind)
    timing = Timing(warmup=1, repeats=1, min_repeat_ms=_TURN_MS)
    on_cpu = job.spec.target_kind == "llvm"
    runner = Runner(device, timing) if on_cpu else GpuRunner(device, timing, spin_up_ms=_SPIN_UP_MS)
    with leases.all_to_measure_on():
        leases.progress(f"timing the best candidates of {len(built)} tasks again, in turns")
        retiming.time_in_turns(built, runner)
        fastest = {}
        for hash, candidates in built.items():
            reference = verify.load(job.workspace.tuning_log(job.spec.target_key, hash).reference)
            fastest[hash] = retiming.fastest_correct(candidates, reference, device)
        return fastest


def _libraries(job: ExportJob, folder: Path) -> dict[str, Path]:
    """Return where the libraries of the model go that are compared, by the key of their latency in the report."""
    libraries = {UNTUNED: folder / "untuned.so", TUNED: folder / LIBRARY}
    return {**libraries, WITHOUT_GRAPH: folder / "without_graph.so"} if _has_graph(job) else libraries


def _has_graph(job: ExportJob) -> bool:
    return job.request.cuda_graph and job.device.launches_graphs


def _made(folder: Path) -> Path:
    """Make the output folder, and delete what killed exports left in it."""
    make_folders(folder)
    remove_temporaries(folder)
    return folder


def _compile(
    job: ExportJob,
    best: Mapping[str, Trial],
    libraries: Mapping[str, Path],
    rows: Mapping[str, int],
    leases: Leases,
) -> dict[str, KernelWork]:
    """Write all libraries before any of them runs: a library that is written after a run prints lines when loaded.

    Returns:
        The work of each kernel of the tuned one.
    """
    model = JobModel.read(job.paths, job.spec)
    lowered, executable = model.compile_tuned(best, libraries[TUNED], cuda_graph=_has_graph(job))
    if WITHOUT_GRAPH in libraries:
        model.compile_tuned(best, libraries[WITHOUT_GRAPH])
    if job.request.source:
        names = job.models[0].output_names()
        described = Described(job.spec.name, job.spec.inputs, names, job.request.threads, __version__, rows)
        write_source(libraries[TUNED].parent / SOURCE, lowered, executable, described)
    leases.progress("compiling the untuned model, to compare with")
    model.compile_untuned(libraries[UNTUNED])
    return kernel_work(model.prepared, {task.hash: task.name for task in job.spec.tasks})


def _limits(job: ExportJob) -> Roofline | None:
    """Measure what this machine's CPUs can do at most, for a job that is for them."""
    if not job.device.is_local_cpu:
        return None
    return measure(tvm_target(job.spec.target), job.request.threads)
