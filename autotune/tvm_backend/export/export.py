"""Export a job in a process that has TVM: compile, verify, compare latencies and write the output folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import BadState, VerificationError
from autotune.machine import gpus
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease, lease_one
from autotune.processes.messages import ExportAnswer, ExportRequest, StepReporter
from autotune.storage.atomic import make_folders, remove_temporaries
from autotune.storage.formats import Entry, InputSpec, JobSpec, Trial
from autotune.storage.job_files import check_model, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import compare, output_folder, reporting, retiming
from autotune.tvm_backend.export.board_comparison import BoardComparison
from autotune.tvm_backend.export.export_job import ExportJob
from autotune.tvm_backend.export.files import LIBRARY
from autotune.tvm_backend.export.job_model import JobModel
from autotune.tvm_backend.export.kernel_work import KernelWork, kernel_work
from autotune.tvm_backend.export.reporting import Comparison, KernelLimits
from autotune.tvm_backend.export.runtime_comparison import Runtime, RuntimeComparison
from autotune.tvm_backend.export.source import folder as source
from autotune.tvm_backend.export.source.write import Described, write_source
from autotune.tvm_backend.export.submitted import Submitted, submitted
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.roofline import Roofline, measure
from autotune.tvm_backend.kernels.run import Runner, Timing, open_device
from autotune.tvm_backend.kernels.run_gpu import GpuRunner
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.tasks import read_program

if TYPE_CHECKING:
    from autotune.tvm_backend.export.inputs import VerificationInputs

TUNED, WITHOUT_GRAPH = "tuned_ms", "without_graph_ms"  # keys of latencies in the report
_ROUNDS_LESS = "; submit it with --no-winograd, which rounds less"
_VERIFY_SEED = 2026
_TURN_MS = 20
_SPIN_UP_MS = 200
# An output that moves by less with the last bit of the inputs has no steps; one that moves by more says nothing.
_LEAST_SENSITIVE, _MOST_SENSITIVE = 1e-3, 0.05


def run(request: ExportRequest, progress: StepReporter) -> ExportAnswer:
    """Export the best schedules that a job has found so far.

    Args:
        request: What to export, and how.
        progress: Called with a description of each step when it starts.

    Returns:
        The report, as in `report.json`.

    Raises:
        VerificationError: The outputs of the compiled model differ from those of the model as submitted.
        BadState: This machine has no device of the target's kind.
    """
    workspace = Workspace(Path(request.workspace))
    paths = JobPaths(workspace.jobs / request.job)
    spec = read_spec(paths)
    check_model(paths, spec)
    export = ExportJob(request, workspace, paths, spec, submitted(paths, spec))
    os.environ["TVM_NUM_THREADS"] = str(export.request.threads)
    if len(export.request.measure_cpus) != os.cpu_count():
        os.environ["TVM_BIND_THREADS"] = "0"
    pin(export.request.cpus)
    return ExportAnswer(_export(export, progress))


def _export(export: ExportJob, progress: StepReporter) -> dict[str, Any]:
    found = retiming.fastest_trials(export.workspace, export.spec, export.request.contenders)
    with scratch_folder("export") as folder:
        with _one_cpu(export, progress):
            progress("loading TVM")
            load_tvm(export.spec.target_kind)
            _take_gpu(export.spec)
            built = _build_again(export, found, Path(folder), progress)
        again = _time_again(export, built, progress) if built else {}
    best = {hash: trials[0] for hash, trials in found.items()} | {hash: item.trial for hash, item in again.items()}
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=_made(Path(export.request.output))) as folder:
        libraries = _libraries(export, Path(folder))
        with _one_cpu(export, progress):
            progress("compiling the tuned model")
            chosen = _inputs(export)
            rows = [inputs.rows for inputs in chosen]
            work = _compile(export, best, libraries, rows[0], progress)
        with _compared(export, progress):
            comparisons = [
                _compare(export, entry, inputs, libraries)
                for entry, inputs in zip(export.spec.all_entries, chosen, strict=True)
            ]
            limits = _limits(export)
        kernels = KernelLimits(work, limits)
        report = reporting.report(export.spec, export.request, best, again, comparisons, kernels)
        report |= {"size_mb": output_folder.sizes(export, libraries[TUNED])}
        output_folder.write(export, libraries[TUNED], report, [item.outputs for item in comparisons], rows)
    return report


def _libraries(export: ExportJob, folder: Path) -> dict[str, Path]:
    """Return where the libraries of the model go that are compared, by the key of their latency in the report."""
    found = {"untuned_ms": folder / "untuned.so", TUNED: folder / LIBRARY}
    return {**found, WITHOUT_GRAPH: folder / "without_graph.so"} if _has_graph(export) else found


def _has_graph(export: ExportJob) -> bool:
    return export.request.cuda_graph and export.spec.target_kind == gpus.KIND


def _made(folder: Path) -> Path:
    """Make the output folder, and delete what killed exports left in it."""
    make_folders(folder)
    remove_temporaries(folder)
    return folder


@contextlib.contextmanager
def _one_cpu(export: ExportJob, progress: StepReporter) -> Iterator[None]:
    progress("waiting for a CPU", waiting=True)
    with lease_one(Path(export.request.lock_folder), map(cpu_name, export.request.cpus)):
        pin(export.request.cpus)
        yield


@contextlib.contextmanager
def _quiet(export: ExportJob, progress: StepReporter) -> Iterator[None]:
    progress("waiting for the CPUs to measure on", waiting=True)
    with lease(Path(export.request.lock_folder), _measured_on(export), wait_s=-1):
        pin(export.request.measure_cpus)
        yield


@contextlib.contextmanager
def _compared(export: ExportJob, progress: StepReporter) -> Iterator[None]:
    """Wait for what the model is verified and timed on: for a board, the tracker is asked later."""
    if export.request.board is not None:
        with _one_cpu(export, progress):
            progress("verifying and timing on a board")
            yield
        return
    with _quiet(export, progress):
        progress("verifying and comparing, each runtime alone in a process of its own")
        yield


def _build_again(
    export: ExportJob, found: Mapping[str, Sequence[Trial]], folder: Path, progress: StepReporter
) -> dict[str, list[retiming.RetimedCandidate]]:
    """Build the best candidates of each task again."""
    import tvm

    target, built = tvm.target.Target(export.spec.target), {}
    indices = {task.hash: index for index, task in enumerate(export.spec.tasks)}
    hashes = retiming.tasks_to_retime(export.spec, found)
    for number, hash in enumerate(hashes):
        progress(f"building the best candidates of each task again ({number + 1} of {len(hashes)} tasks)")
        program = read_program(export.paths.task(indices[hash]), hash)
        built[hash] = retiming.build(found[hash], program, target, folder)
    return built


def _time_again(
    export: ExportJob, built: Mapping[str, Sequence[retiming.RetimedCandidate]], progress: StepReporter
) -> dict[str, retiming.RetimedCandidate]:
    """Time the candidates again, and return the fastest correct one of each task."""
    device, logs = open_device(export.spec.target_kind), export.workspace
    timing = Timing(warmup=1, repeats=1, min_repeat_ms=_TURN_MS)
    with _quiet(export, progress):
        progress(f"timing the best candidates of {len(built)} tasks again, in turns")
        on_cpu = export.spec.target_kind == "llvm"
        retiming.time_in_turns(
            built, Runner(device, timing) if on_cpu else GpuRunner(device, timing, spin_up_ms=_SPIN_UP_MS)
        )
        return {
            hash: retiming.fastest_correct(
                candidates, verify.load(logs.tuning_log(export.spec.target_key, hash).reference), device
            )
            for hash, candidates in built.items()
        }


def _measured_on(export: ExportJob) -> list[str]:
    """Return the names of the resources to lease: the device of the target, and the CPUs that the reference uses."""
    gpu = _gpu(export.spec)
    device = [f"{gpus.KIND}:{gpu.index}"] if gpu is not None else []
    return [*map(cpu_name, export.request.measure_cpus), *device]


def _gpu(spec: JobSpec) -> gpus.CudaDevice | None:
    """Return the first GPU of the target's architecture, if the target is one."""
    if spec.target_kind != gpus.KIND:
        return None
    arch = spec.target.get("arch")
    found = next((gpu for gpu in gpus.cuda_devices() if gpu.arch == arch), None)
    if found is None:
        raise BadState(f"the job is for CUDA, {arch}, and this machine has no such GPU; export it on one that has")
    return found


def _take_gpu(spec: JobSpec) -> None:
    """Take that GPU, for this process and those that it starts."""
    gpu = _gpu(spec)
    if gpu is not None:
        runtime.load()
        gpu.take()


def _compile(
    export: ExportJob,
    best: Mapping[str, Trial],
    libraries: Mapping[str, Path],
    rows: Mapping[str, int],
    progress: StepReporter,
) -> dict[str, KernelWork]:
    """Write all libraries before any of them runs: a library that is written after a run prints lines when loaded.

    Returns:
        The work of each kernel of the tuned one.
    """
    model = JobModel.read(export.paths, export.spec)
    lowered, executable = model.compile_tuned(best, libraries[TUNED], cuda_graph=_has_graph(export))
    if WITHOUT_GRAPH in libraries:
        model.compile_tuned(best, libraries[WITHOUT_GRAPH])
    if export.request.source:
        write_source(libraries[TUNED].parent / source.FOLDER, lowered, executable, _described(export, rows))
    progress("compiling the untuned model, to compare with")
    model.compile_untuned(libraries["untuned_ms"])
    return kernel_work(model.prepared, {task.hash: task.name for task in export.spec.tasks})


def _described(export: ExportJob, rows: Mapping[str, int]) -> Described:
    from autotune.version import __version__

    spec, threads = export.spec, export.request.threads
    return Described(spec.name, spec.inputs, export.models[0].output_names(), threads, __version__, rows)


def _inputs(export: ExportJob) -> list[VerificationInputs]:
    """Choose the inputs of each entry, and check that the reference can run the model on them: compiling takes minutes.

    Raises:
        BadInput, VerificationError
    """
    from autotune.tvm_backend.export import inputs

    spec, found = export.spec, []
    files = inputs.files_of_entries([Path(file) for file in export.request.inputs], spec.all_entries)
    for model, entry in zip(export.models, spec.all_entries, strict=True):
        file = files.get(entry.name)
        chosen = inputs.verification_inputs(model, entry.inputs, file, _VERIFY_SEED)
        run_once = model.runner(chosen.arrays, export.request.threads)
        with _about(spec, entry):
            inputs.check_reference(run_once, given=file is not None, runtime=model.title)
        found.append(chosen)
    return found


@contextlib.contextmanager
def _about(spec: JobSpec, entry: Entry) -> Iterator[None]:
    """Say in errors of the verification which set of shapes they are about, where there are several."""
    try:
        yield
    except VerificationError as error:
        if not spec.entries:
            raise
        raise VerificationError(f"{entry.name}: {error}") from None


def _compare(export: ExportJob, entry: Entry, inputs: VerificationInputs, libraries: Mapping[str, Path]) -> Comparison:
    if export.request.board is not None:
        return _compare_on_board(export, entry, inputs, libraries)
    device = "cuda" if export.spec.target_kind == "cuda" else "cpu"
    model, reference = export.models[0], f"{export.models[0].runtime}_ms"
    runtimes = {
        **{name: Runtime("library", file, device, function=entry.name) for name, file in libraries.items()},
        reference: Runtime(model.runtime, model.file, values=export.spec.values),
    }
    with RuntimeComparison(runtimes, entry.inputs, inputs.arrays, export.request.threads) as comparison:
        ours, theirs = (comparison.outputs(name) for name in (TUNED, reference))
        error, moves = _verify(export, entry, inputs, ours, theirs)
        # The model as submitted runs on the CPU: beside a library on a GPU, its time would mean nothing.
        apart, pair = ({reference}, None) if device == "cuda" else (set[str](), (TUNED, reference))
        times = {**dict.fromkeys(runtimes), **comparison.time(export.request.turns, pair=pair, without=apart)}
        kernels = comparison.kernels(WITHOUT_GRAPH if WITHOUT_GRAPH in libraries else TUNED)
        return Comparison(error, times, kernels, _outputs(model, ours), inputs.rows, model.runtime, moves)


def _compare_on_board(
    export: ExportJob, entry: Entry, inputs: VerificationInputs, libraries: Mapping[str, Path]
) -> Comparison:
    """Verify and time on a board. The model as submitted runs here, so its time would mean nothing."""
    model, request = export.models[0], export.request
    assert request.board is not None
    reference = Runtime(model.runtime, model.file, values=export.spec.values)
    with RuntimeComparison({"reference": reference}, entry.inputs, inputs.arrays, request.threads) as comparison:
        theirs = comparison.outputs("reference")
    board = BoardComparison(request.board, libraries, entry.name, inputs.arrays, request.threads, request.turns)
    ours, times = board.run(TUNED)
    error, moves = _verify(export, entry, inputs, ours, theirs)
    return Comparison(error, times, [], _outputs(model, ours), inputs.rows, model.runtime, moves)


def _outputs(model: Submitted, arrays: compare.Arrays) -> tuple[InputSpec, ...]:
    names = model.output_names()
    return tuple(InputSpec(name, array.shape, str(array.dtype)) for name, array in zip(names, arrays, strict=True))


def _verify(
    export: ExportJob, entry: Entry, inputs: VerificationInputs, ours: compare.Arrays, theirs: compare.Arrays
) -> tuple[float, float]:
    """Return the largest relative error at one set of shapes, which is allowed, and what `_sensitivity` returns."""
    with _about(export.spec, entry):
        moves = _sensitivity(export, entry, inputs, ours, theirs)
        allowed, title = max(export.request.tolerance, moves), export.models[0].title
        try:
            return compare.check(ours, theirs, allowed, inputs.probabilities, title), moves
        except VerificationError as failure:
            rounds = any(task.name.startswith("winograd") for task in export.spec.tasks)
            raise VerificationError(f"{failure}{_ROUNDS_LESS if rounds else ''}") from None


def _sensitivity(
    export: ExportJob, entry: Entry, inputs: VerificationInputs, ours: compare.Arrays, theirs: compare.Arrays
) -> float:
    """Return how much the outputs of the reference move with the last bit of its inputs.

    It is 0 where that does not matter: the error is within the user's tolerance, or they move by less than 0.1%, as
    smooth models do, or by more than 5%.
    """
    if compare.largest_error(ours, theirs, inputs.probabilities) <= export.request.tolerance:
        return 0.0
    model = export.models[export.spec.all_entries.index(entry)]
    found = compare.sensitivity(
        lambda arrays: model.runner(arrays, export.request.threads)(), inputs.arrays, theirs, inputs.probabilities
    )
    return found if _LEAST_SENSITIVE <= found <= _MOST_SENSITIVE else 0.0


def _limits(export: ExportJob) -> Roofline | None:
    """Measure what this machine's CPUs can do at most, for a job that is for them."""
    import tvm

    if export.spec.target_kind != "llvm" or export.request.board is not None:
        return None
    return measure(tvm.target.Target(export.spec.target), export.request.threads)
