"""What is asked of the process of an export: which CPUs, how exact, how often it is timed, what is timed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune import devices
from autotune.config import Config
from autotune.daemon import capacity
from autotune.processes.messages import ExportRequest
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.trial_index import nearly_fastest
from autotune.storage.tuning_log import TuningLog


def request_of(
    workspace: Workspace,
    config: Config,
    paths: JobPaths,
    spec: JobSpec,
    output: Path,
    inputs: Sequence[Path],
    *,
    retime: bool = False,
) -> ExportRequest:
    """Return the request for an export; arguments are those of `export`.

    Candidates are timed again where the queue has not timed them as the library runs them, where its measurements were
    disturbed or are of several occasions, as those of a fresh job are, and where the user asks for it.
    """
    all_tasks = retime or spec.fresh or not _timed_as_exported(config, spec)
    lent = capacity.cpus(config)
    board = config.boards.get(spec.board)
    return ExportRequest(
        workspace=str(workspace.root.absolute()),
        job=paths.folder.name,
        output=str(output.absolute()),
        cpus=lent.shared_cpus,
        measure_cpus=lent.cpu_device,
        threads=int(spec.target["num-cores"]) if board else capacity.threads(config),
        lock_folder=str(config.machine.lock_folder),
        tolerance=_tolerance(config, spec),
        turns=config.export.repeats,
        compare_s=config.export.compare_s,
        contenders=_contenders(workspace, config, spec, all_tasks=all_tasks),
        disturbed_only=not all_tasks,
        inputs=tuple(str(file.absolute()) for file in inputs),
        board=board,
        cuda_graph=config.export.cuda_graph,
        kept_bytes=config.export.kept_bytes,
    )


def _timed_as_exported(config: Config, spec: JobSpec) -> bool:
    """Return whether the queue has timed kernels as the library runs them.

    That is on this machine, with as many threads, and with their arguments where the model has them.
    """
    in_context = devices.of_job(spec, config).held_by(spec.target_key) is not None
    return in_context and int(spec.target.get("num-cores", 0)) == capacity.threads(config)


def _contenders(workspace: Workspace, config: Config, spec: JobSpec, *, all_tasks: bool) -> int:
    """Return how many of the best candidates of a task are timed again at most; 1 for none."""
    most = config.export.contenders
    if spec.board or not (all_tasks or _is_disturbed(workspace, spec, most)):
        return 1
    return most


def _is_disturbed(workspace: Workspace, spec: JobSpec, most: int) -> bool:
    """Return whether the measurement of a trial that may be the fastest of its task was disturbed."""
    logs = (TuningLog(workspace.tuning_log(spec.target_key, task.hash).records) for task in spec.tasks)
    near = (nearly_fastest(log.entries(), most) for log in logs)
    return any(len(entries) > 1 and any(entry.disturbed for entry in entries) for entries in near)


def _tolerance(config: Config, spec: JobSpec) -> float:
    limits = config.export
    if spec.activations == "int8":
        return limits.tolerance_activations
    other = {"fp16": limits.tolerance_fp16, "tf32": limits.tolerance_tf32, "bf16": limits.tolerance_bf16}
    return other.get(spec.precision, limits.tolerance)  # in int8, it is compared with the quantised model
