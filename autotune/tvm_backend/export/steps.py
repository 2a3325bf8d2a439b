"""The steps of an export: compile the best kernels so far and verify them; find the fastest; compare and write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from autotune.devices.cpu import nearest_holding
from autotune.errors import BadState, VerificationError
from autotune.machine.hardware import allowed_cpus, cache_bytes
from autotune.processes.messages import ExportRequest
from autotune.schema import plain
from autotune.storage import export_lock
from autotune.storage.atomic import make_folders, remove_temporaries
from autotune.storage.export_lock import LOCK
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export import model_times, ready_library
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.library_file import described
from autotune.tvm_backend.export.loadable import LIBRARY
from autotune.tvm_backend.export.model_facts import facts_of
from autotune.tvm_backend.export.model_times import TUNED, WITHOUT_GRAPH, Comparison
from autotune.tvm_backend.export.progress import (
    BUILDING,
    COMPARING,
    COMPILING,
    COMPILING_AGAIN,
    READING,
    THREADS,
    TIMING,
    UNTUNED,
    VERIFYING,
    Leases,
)
from autotune.tvm_backend.export.ready_library import ModelFacts, ReadyLibrary
from autotune.tvm_backend.export.submitted import ExportJob, submitted
from autotune.tvm_backend.export.timing import retiming
from autotune.tvm_backend.export.verification import (
    float_reference,
    padded_sizes,
    perplexity,
    verified_choices,
    verify_model,
)
from autotune.tvm_backend.export.verification.verify_model import Case, Verified
from autotune.tvm_backend.export.writing.files import SOURCE
from autotune.tvm_backend.export.writing.output_folder import lock_of, write
from autotune.tvm_backend.export.writing.report_json import KernelLimits, report, required_instructions
from autotune.tvm_backend.export.writing.source import Described, write_source
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.cache_state import Context
from autotune.tvm_backend.kernels.roofline import Roofline, measure
from autotune.tvm_backend.kernels.time_kernel import Runner, Timing, open_device
from autotune.tvm_backend.kernels.time_on_gpu import GpuRunner
from autotune.tvm_backend.search.tasks import read_program
from autotune.tvm_backend.target import tvm_target
from autotune.tvm_backend.types import IRModule
from autotune.tvm_backend.untrusted_traces import check_trace
from autotune.version import __version__

_MAX_RING_BYTES = 2**31
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
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=_made(Path(request.output))) as folder:
        ready = _ready(job, Path(folder, LIBRARY))
        applies = retiming.Replayer(paths, spec, trusted=ready is not None)
        fastest = _locked(job, applies) if request.frozen else _fastest(job, applies)
        best = {hash: trials[0] for hash, trials in fastest.items()}
        export = _read(job, Path(folder), leases, ready)
        verified = _first(export, best)
        again = {} if request.quick else _retime(export, fastest)
        picked = best | {hash: item.trial for hash, item in again.items()}
        if picked != best:
            verified = _again(export, picked)
        padding = padded_sizes.verify(job, export.tuned, verified, leases)
        by_threads = _times_by_threads(export, verified) if request.fewer_threads else {}
        export = _on_threads(export, by_threads)
        job = export.job
        content = _report(export, picked, again, _measure(export, picked, verified, request.threads))
        content |= {"padding": padding, "reference_threads": request.threads, "ms_by_threads": by_threads}
        content |= perplexity.language_part(job, export.tuned, content, leases)
        content |= {"set_aside": _set_aside(spec, applies.set_aside, retiming.claims(workspace, spec))}
        write(job, export.tuned, content, verified, lock_of(job, picked))
    return content


def _ready(job: ExportJob, library: Path) -> ReadyLibrary | None:
    """Take the library that the queue has compiled of the best schedules.

    Returns:
        Its note; None if there is none, so that the library has to be compiled.
    """
    request = job.request
    if request.frozen or request.source or not (job.device.is_local_cpu and request.kept_bytes):
        return None
    ready = ready_library.find(job.workspace, job.paths, job.spec)
    return ready if ready is not None and ready_library.copy(job.paths, ready, library) else None


def _fastest(job: ExportJob, applies: retiming.Replayer) -> dict[str, list[Trial]]:
    request = job.request
    most = 1 if request.quick else request.contenders
    return retiming.fastest_trials(job.workspace, job.spec, most, applies, disturbed_only=request.disturbed_only)


def _locked(job: ExportJob, applies: retiming.Replayer) -> dict[str, list[Trial]]:
    """Return the trial that the lock file has of each task.

    Raises:
        BadState: The schedule of one does not apply to its task any more.
    """
    trials = export_lock.read(Path(job.request.output), check_trace).trials
    for task in job.spec.tasks:
        if task.hash in trials and not applies(task.hash, trials[task.hash]):
            refused = applies.set_aside[task.hash][0]
            raise BadState(f"{LOCK}: candidate {refused.hash} of {task.name}: {refused.reason}")
    return {hash: [trial] for hash, trial in trials.items()}


def _set_aside(
    spec: JobSpec, trials: Mapping[str, Sequence[retiming.SetAside]], claims: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the part of the report on trials that were not used: those that do not apply, and what others claim."""
    names = {task.hash: task.name for task in spec.tasks}
    refused = [{"task": names[task], **asdict(item)} for task, items in trials.items() for item in items]
    untimed = "{} imported trials were not timed here, and this workspace has none of its own; let the daemon run"
    reasons = [(names[task], untimed.format(count)) for task, count in claims.items() if count]
    return refused + [{"task": name, "hash": None, "best_us": None, "reason": reason} for name, reason in reasons]


@dataclass(frozen=True)
class _Export:
    """What the steps share.

    Attributes:
        leases: Wait for what a step may use.
        read: Reads the model, once.
        ready: The note of the library that the queue has compiled, if there is one.
        cases: What it is verified on, for each set of shapes.
        folder: Where libraries go.
    """

    job: ExportJob
    leases: Leases
    read: Callable[[], JobModel]
    ready: ReadyLibrary | None
    cases: Sequence[Case]
    folder: Path

    @property
    def model(self) -> JobModel:
        """The model, which takes seconds to read, and which is not needed where nothing is compiled."""
        return self.read()

    @property
    def facts(self) -> ModelFacts:
        """What the report says of the library besides its times."""
        if self.ready is not None:
            return self.ready.facts
        return facts_of(self.model.prepared, self.job.spec, self.model.target)

    @property
    def tuned(self) -> Path:
        """The library that is handed over."""
        return self.folder / LIBRARY

    @property
    def has_graph(self) -> bool:
        """Whether that library launches its kernels as a CUDA graph."""
        return self.job.request.cuda_graph and self.job.device.launches_graphs


def _made(folder: Path) -> Path:
    """Make the output folder, and delete what killed exports left in it."""
    make_folders(folder)
    remove_temporaries(folder)
    return folder


def _read(job: ExportJob, folder: Path, leases: Leases, ready: ReadyLibrary | None) -> _Export:
    """Choose what the model is verified on, and read it if it has to be compiled."""
    with leases.one_cpu():
        leases.steps.begin(READING)
        cases = verify_model.choose_inputs(job)
        export = _Export(job, leases, lru_cache(partial(JobModel.read, job.paths, job.spec)), ready, cases, folder)
        if ready is None:
            _ = export.model
        return export


def _first(export: _Export, best: Mapping[str, Trial]) -> list[Verified]:
    """Compile and verify the best kernels so far: a model that fails does so before anything is timed."""
    steps = export.leases.steps
    if export.ready is None:
        steps.begin(COMPILING)
        _compile(export, best)
    steps.begin(VERIFYING)
    return _verify(export, best)


def _compile(export: _Export, best: Mapping[str, Trial]) -> None:
    job = export.job
    with export.leases.free_cpus() as count:
        lowered, executable = export.model.compile_tuned(
            best, export.tuned, cuda_graph=export.has_graph, kept=job.kept, children=count
        )
        if job.request.source:
            names = [*job.models[0].output_names(), *job.models[0].counted().names]
            rows = export.cases[0].inputs.rows
            needed = required_instructions(job.spec, [var.name_hint for var in export.model.prepared.functions])
            about = Described(job.spec.name, job.spec.inputs, names, job.request.threads, __version__, rows, needed)
            write_source(export.folder / SOURCE, lowered, executable, about)


def _verify(export: _Export, best: Mapping[str, Trial]) -> list[Verified]:
    with export.leases.comparison():
        return [_verify_case(export, case, best) for case in export.cases]


def _verify_case(export: _Export, case: Case, best: Mapping[str, Trial]) -> Verified:
    if export.job.spec.activations == "int8":  # the model's own runtime may round them, too
        case = float_reference.in_float32(export.job, case)
    try:
        return verify_model.verify(export.job, case, export.tuned)
    except VerificationError as failure:
        in_floats = float_reference.compare(export.job, case, export.tuned)
        if in_floats is not None and in_floats.is_right:
            return in_floats.verified()
        verified = verified_choices.verify(export.job, case, export.tuned, best)
        if verified is None:
            raise VerificationError(f"{failure}{in_floats.text() if in_floats else ''}") from None
        return verified


def _retime(export: _Export, fastest: Mapping[str, Sequence[Trial]]) -> dict[str, retiming.RetimedCandidate]:
    """Build the best candidates of each task again, time them, and return the fastest correct one of each task."""
    with scratch_folder("export") as folder:
        built = _build_again(export, fastest, Path(folder))
        return _time_again(export, built) if built else {}


def _build_again(
    export: _Export, fastest: Mapping[str, Sequence[Trial]], folder: Path
) -> dict[str, list[retiming.RetimedCandidate]]:
    job = export.job
    steps = export.leases.steps
    contenders = retiming.contenders(job.spec, fastest)
    if job.request.disturbed_only:
        contenders = retiming.disturbed(contenders)
    if not contenders:
        return {}
    items = [(hash, trial) for hash, trials in contenders.items() for trial in trials]
    programs = lru_cache(maxsize=None)(partial(_program, job))
    with export.leases.free_cpus() as count:
        steps.begin(BUILDING)
        children = count if job.device.is_local_cpu else 0  # the compiler for a GPU may have threads
        for number, _ in enumerate(retiming.build(items, programs, tvm_target(job.spec.target), folder, children)):
            steps.done(number, len(items))
    return retiming.candidates(items, folder)


def _program(job: ExportJob, hash: str) -> IRModule:
    index = next(index for index, task in enumerate(job.spec.tasks) if task.hash == hash)
    return read_program(job.paths.task(index), hash)


def _time_again(
    export: _Export, built: Mapping[str, Sequence[retiming.RetimedCandidate]]
) -> dict[str, retiming.RetimedCandidate]:
    job = export.job
    device = open_device(job.spec.target_kind)
    timing = Timing(warmup=1, repeats=1, min_repeat_ms=_TURN_MS)
    on_cpu = job.spec.target_kind == "llvm"
    runner = Runner(device, timing) if on_cpu else GpuRunner(device, timing, spin_up_ms=_SPIN_UP_MS)
    with export.leases.timing():
        export.leases.steps.begin(TIMING)
        retiming.time_in_turns(built, runner, _contexts(export) if on_cpu else {})
        fastest = {}
        for hash, candidates in built.items():
            reference = verify.load(job.workspace.tuning_log(job.spec.target_key, hash).reference)
            fastest[hash] = retiming.fastest_correct(candidates, reference, device)
        return fastest


def _contexts(export: _Export) -> dict[str, Context]:
    """Return where the model has the arguments of each task's kernel, by the hash of the task."""
    held = nearest_holding(export.facts.constant_bytes, export.job.request.threads)
    return {task.hash: Context(held, task.constants) for task in export.job.spec.tasks}


def _again(export: _Export, best: Mapping[str, Trial]) -> list[Verified]:
    """Compile and verify the fastest kernels."""
    export.leases.steps.begin(COMPILING_AGAIN)
    _compile(export, best)
    return _verify(export, best)


@dataclass(frozen=True)
class _Measured:
    """What was measured of the library, and of the machine where the job is for its CPUs."""

    comparisons: Sequence[Comparison]
    limits: Roofline | None = None


def _times_by_threads(export: _Export, verified: Sequence[Verified]) -> dict[int, float]:
    with export.leases.timing():
        export.leases.steps.begin(THREADS)
        return model_times.times_by_threads(export.job, verified, export.tuned)


def _on_threads(export: _Export, times: Mapping[int, float]) -> _Export:
    """Return the export of a library for the number of threads on which it is fastest; for all without times."""
    if not times:
        return export
    request = replace(export.job.request, threads=min(times, key=lambda count: (times[count], count)))
    return replace(export, job=replace(export.job, request=request))


def _measure(
    export: _Export, best: Mapping[str, Trial], verified: Sequence[Verified], reference_threads: int
) -> _Measured:
    """Time the library at each set of shapes, beside others that the user wants to see it compared with.

    The model as submitted runs on `reference_threads`.
    """
    job = export.job
    if job.request.quick:
        return _Measured([Comparison(item, job.models[0].runtime) for item in verified])
    libraries = {**_compile_others(export, best), TUNED: export.tuned}
    with export.leases.timing():
        export.leases.steps.begin(COMPARING)
        comparisons = [model_times.compare(job, item, libraries, reference_threads) for item in verified]
        return _Measured(comparisons, _limits(export) if job.device.is_local_cpu else None)


def _limits(export: _Export) -> Roofline:
    """Measure what the machine allows a model whose constants are as large as those of this one."""
    constants = min(export.facts.constant_bytes, _MAX_RING_BYTES)
    return measure(tvm_target(export.job.spec.target), export.job.request.threads, constants)


def _compile_others(export: _Export, best: Mapping[str, Trial]) -> dict[str, Path]:
    """Compile what the library is compared with, by the key of its latency in the report."""
    others = dict[str, Path]()
    with export.leases.one_cpu():
        if export.has_graph:
            others[WITHOUT_GRAPH] = export.folder / "without_graph.so"
            export.model.compile_tuned(best, others[WITHOUT_GRAPH])
        if export.job.request.untuned:
            export.leases.steps.begin(UNTUNED)
            others[model_times.UNTUNED] = export.folder / "untuned.so"
            export.model.compile_untuned(others[model_times.UNTUNED])
    return others


def _report(
    export: _Export,
    best: Mapping[str, Trial],
    again: Mapping[str, retiming.RetimedCandidate],
    measured: _Measured,
) -> dict[str, Any]:
    job = export.job
    facts = export.facts
    caches = cache_bytes(2, allowed_cpus()[: job.request.threads])
    limits = KernelLimits(facts.kernels, measured.limits, caches)
    content = report(job.paths, job.spec, job.request, best, again, measured.comparisons, limits)
    library = {"library": plain(described(export.tuned)), "size_mb": sizes(job, export.tuned)}
    return content | library | {"activations": facts.activations}


def sizes(export: ExportJob, tuned: Path) -> dict[str, float]:
    """Return the sizes of the model and of what is written, in megabytes."""
    folder = tuned.parent / SOURCE
    file = export.models[0].file
    sizes = {file.suffix[1:]: file.stat().st_size, LIBRARY: tuned.stat().st_size}
    if folder.exists():
        sizes[SOURCE] = sum(file.stat().st_size for file in folder.iterdir())
    return {name: round(size / 1e6, 3) for name, size in sizes.items()}
