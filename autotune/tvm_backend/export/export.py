"""The TVM side of `export`: compile, verify, compare, and write the folder that is handed over."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.errors import BadState, VerificationError
from autotune.machine import gpus
from autotune.machine.hardware import pin
from autotune.machine.leases import cpu_name, lease, lease_one
from autotune.processes.messages import ExportAnswer, ExportRequest
from autotune.storage.atomic import publish_bytes, publish_json
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import check_model, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.cuda import runtime
from autotune.tvm_backend.export import compare, contest, retiming
from autotune.tvm_backend.export.files import LIBRARY, MADE_BY, REPORT, REPORT_FORMAT, SCRIPT
from autotune.tvm_backend.kernels import verify
from autotune.tvm_backend.kernels.run import Runner, Timing, open_device
from autotune.tvm_backend.load import load_tvm
from autotune.tvm_backend.search.tasks import read_program

_ROUNDS_LESS = "; submit it with --no-winograd, which rounds less"
_VERIFY_SEED = 2026
_TURN_MS = 20

_RUN_PY = '''"""Run {name} once on random inputs, with the TVM runtime alone. {made_by} {version}."""
import os

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # TVM's own default is half of the CPUs
from pathlib import Path
import numpy, tvm
from tvm import relax

model = relax.VirtualMachine(tvm.runtime.load_module(str(Path(__file__).parent / "{library}")), tvm.{device}(0))
inputs = [numpy.random.rand(*shape).astype(dtype) for shape, dtype in {inputs}]
outputs = model["main"](*[tvm.runtime.tensor(array, device=tvm.{device}(0)) for array in inputs])
for output in [outputs] if hasattr(outputs, "numpy") else outputs:
    print(output.shape, output.dtype, output.numpy().ravel()[:4])
'''


@dataclass(frozen=True)
class _Export:
    """One export: what was asked for, and of which job."""

    request: ExportRequest
    workspace: Workspace
    paths: JobPaths
    spec: JobSpec


def run(request: ExportRequest, progress: Callable[[str], None]) -> ExportAnswer:
    """Export a job's best so far and return the report.

    Raises:
        VerificationError: the compiled model computes something else than ONNX Runtime.
        BadState: the target's device is not on this machine.
    """
    workspace = Workspace(Path(request.workspace))
    paths = JobPaths(workspace.jobs / request.job)
    spec = read_spec(paths)
    check_model(paths, spec)
    export = _Export(request, workspace, paths, spec)
    os.environ["TVM_NUM_THREADS"] = str(export.request.threads)
    if len(export.request.measure_cpus) != os.cpu_count():
        os.environ["TVM_BIND_THREADS"] = "0"
    pin(export.request.cpus)
    return ExportAnswer(_export(export, progress))


def _export(export: _Export, progress: Callable[[str], None]) -> dict[str, Any]:
    found = retiming.contenders(export.workspace, export.spec, export.request.contenders)
    with tempfile.TemporaryDirectory(prefix="autotune-export-") as folder:
        with _one_cpu(export, progress):
            progress("loading TVM")
            load_tvm(export.spec.target_kind)
            _take_gpu(export.spec)
            races = _enter(export, found, Path(folder), progress)
        again = _play(export, races, progress) if races else {}
    best = {hash: trials[0] for hash, trials in found.items()} | {hash: item.trial for hash, item in again.items()}
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=_made(Path(export.request.output))) as folder:
        tuned, untuned = Path(folder) / LIBRARY, Path(folder) / "untuned.so"
        with _one_cpu(export, progress):
            arrays = _inputs(export)
            progress("compiling the tuned model")
            _compile(export, best, tuned, untuned, progress)
        with _quiet(export, progress):
            progress("verifying and comparing, each runtime alone in a process of its own")
            error, times = _compare(export, arrays, tuned, untuned)
        report = _report(export, best, again, error, times)
        _write(export, tuned, report)
    return report


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _one_cpu(export: _Export, progress: Callable[[str], None]) -> Iterator[None]:
    progress("waiting for a CPU")
    with lease_one(Path(export.request.lock_folder), map(cpu_name, export.request.cpus)):
        pin(export.request.cpus)
        yield


@contextlib.contextmanager
def _quiet(export: _Export, progress: Callable[[str], None]) -> Iterator[None]:
    progress("waiting for the CPUs to measure on")
    with lease(Path(export.request.lock_folder), _measured_on(export), wait_s=-1):
        pin(export.request.measure_cpus)
        yield


def _enter(
    export: _Export, found: Mapping[str, Sequence[Trial]], folder: Path, progress: Callable[[str], None]
) -> dict[str, list[retiming.Entrant]]:
    """The contenders of each task, built again."""
    import tvm

    target, races = tvm.target.Target(export.spec.target), {}
    indices = {task.hash: index for index, task in enumerate(export.spec.tasks)}
    wanted = retiming.open_races(export.spec, found)
    for number, hash in enumerate(wanted):
        progress(f"building the best candidates of each task again ({number + 1} of {len(wanted)} tasks)")
        program = read_program(export.paths.task(indices[hash]), hash)
        races[hash] = retiming.build(found[hash], program, target, folder)
    return races


def _play(
    export: _Export, races: Mapping[str, Sequence[retiming.Entrant]], progress: Callable[[str], None]
) -> dict[str, retiming.Entrant]:
    """The winner of each race."""
    device, logs = open_device(export.spec.target_kind), export.workspace
    with _quiet(export, progress):
        progress(f"timing the best candidates of {len(races)} tasks again, in turns")
        retiming.play(races, Runner(device, Timing(warmup=1, repeats=1, min_repeat_ms=_TURN_MS)))
        return {
            hash: retiming.winner(race, verify.load(logs.tuning_log(export.spec.target_key, hash).reference), device)
            for hash, race in races.items()
        }


def _measured_on(export: _Export) -> list[str]:
    """What a measure stage of this target would lease, and the CPUs that ONNX Runtime runs on."""
    arch = export.spec.target.get("arch")
    gpu = next((gpu for gpu in gpus.cuda_devices() if export.spec.target_kind == gpus.KIND and gpu.arch == arch), None)
    device = [f"{gpus.KIND}:{gpu.index}"] if gpu is not None else []
    return [*map(cpu_name, export.request.measure_cpus), *device]


def _take_gpu(spec: JobSpec) -> None:
    """Take the first GPU of the target's architecture, in this process and in those that it starts."""
    if spec.target_kind != gpus.KIND:
        return
    arch = spec.target.get("arch")
    found = next((gpu for gpu in gpus.cuda_devices() if gpu.arch == arch), None)
    if found is None:
        raise BadState(f"this model is for CUDA ({arch}) and this machine has no such GPU to verify it on")
    runtime.load()
    found.take()


def _compile(
    export: _Export, best: Mapping[str, Trial], tuned: Path, untuned: Path, progress: Callable[[str], None]
) -> None:
    """Write both libraries before anything runs: after a run, one prints lines whenever it is loaded."""
    import tvm

    from autotune.tvm_backend.export.compile import compile_tuned, compile_untuned
    from autotune.tvm_backend.graph.model import read_model, read_rewritten
    from autotune.tvm_backend.graph.prepare import prepare
    from autotune.tvm_backend.kernels.build import link_shared
    from autotune.tvm_backend.search.tasks import extract_tasks

    target = tvm.target.Target(export.spec.target)
    paths, inputs = export.paths, export.spec.inputs
    if paths.rewritten_model.exists():
        module = read_rewritten(paths.rewritten_model, inputs).module
    else:
        module = read_model(paths.model, {item.name: item for item in inputs}).module
    prepared = prepare(module, target, winograd=export.spec.winograd)
    tasks = extract_tasks(prepared, target)
    lost = {task.spec.hash for task in tasks} ^ {task.hash for task in export.spec.tasks}
    if lost:
        raise VerificationError(f"the model lowers to other tasks than when it was submitted ({len(lost)} differ)")
    programs = [task.program for task in tasks]
    compile_tuned(prepared, programs, best, target).export_library(str(tuned), fcompile=link_shared)
    progress("compiling the untuned model, to compare with")
    compile_untuned(module, target).export_library(str(untuned), fcompile=link_shared)


def _inputs(export: _Export) -> Any:
    """Inputs that the model as submitted can be run on, which is found out before minutes of compiling."""
    from autotune.tvm_backend.export import inputs

    spec, file = export.spec, export.request.inputs
    arrays = inputs.job_inputs(export.paths, spec.inputs, Path(file) if file else None, _VERIFY_SEED)
    session = compare.onnx_session(export.paths.model, export.request.threads)
    inputs.check_reference(compare.onnx_runner(session, spec.inputs, arrays, spec.values), given=bool(file))
    return arrays


def _compare(export: _Export, arrays: Any, tuned: Path, untuned: Path) -> tuple[float, dict[str, contest.Times]]:
    device = "cuda" if export.spec.target_kind == "cuda" else "cpu"
    contestants = {
        "untuned_ms": contest.Contestant("library", untuned, device),
        "tuned_ms": contest.Contestant("library", tuned, device),
        "onnxruntime_ms": contest.Contestant("onnxruntime", export.paths.model, values=export.spec.values),
    }
    with contest.Contest(contestants, export.spec.inputs, arrays, export.request.threads) as played:
        try:
            ours, theirs = (played.outputs(name) for name in ("tuned_ms", "onnxruntime_ms"))
            error = compare.check(ours, theirs, export.request.tolerance)
        except VerificationError as failure:
            rounds = any(task.name.startswith("winograd") for task in export.spec.tasks)
            raise VerificationError(f"{failure}{_ROUNDS_LESS if rounds else ''}") from None
        return error, played.play(export.request.turns)


def _report(
    export: _Export,
    best: Mapping[str, Trial],
    again: Mapping[str, retiming.Entrant],
    error: float,
    times: Mapping[str, contest.Times],
) -> dict[str, Any]:
    spec = export.spec
    shares = contest.ratios(times["tuned_ms"], times["onnxruntime_ms"])
    tasks = []
    for task in spec.tasks:
        trial, entrant = best.get(task.hash), again.get(task.hash)
        timed = {"best_us": trial.median_us if trial else None, "again_us": entrant.median_us if entrant else None}
        tasks.append({"name": task.name, "weight": task.weight, "gflop": task.gflop, **timed})
    return {
        "job": spec.id,
        "name": spec.name,
        "model": spec.model,
        "target": spec.target,
        "inputs": [asdict(item) for item in spec.inputs],
        "threads": export.request.threads,
        "largest_relative_error": error,
        "tolerance": export.request.tolerance,
        "latency": {name: round(item.median_ms, 4) for name, item in times.items()},
        "latency_spread": {name: [round(value, 4) for value in item.spread_ms] for name, item in times.items()},
        "share_of_onnxruntime": [round(value, 4) for value in (statistics.median(shares), min(shares), max(shares))],
        "processes": len(shares),
        "tasks": tasks,
        "exported_at": time.time(),
    }


def _write(export: _Export, tuned: Path, report: Mapping[str, Any]) -> None:
    """Each file appears whole: the script, by which the folder is known as ours, first; the report last."""
    from autotune.version import __version__

    output = Path(export.request.output)
    script = _RUN_PY.format(
        name=export.spec.name,
        made_by=MADE_BY,
        version=__version__,
        threads=export.request.threads,
        library=LIBRARY,
        device="cuda" if export.spec.target_kind == "cuda" else "cpu",
        inputs=[(item.shape, item.dtype) for item in export.spec.inputs],
    )
    publish_bytes(output / SCRIPT, script.encode())
    os.replace(tuned, output / LIBRARY)
    publish_json(output / REPORT, *REPORT_FORMAT, dict(report))
