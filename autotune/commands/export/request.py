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


def request_of(
    workspace: Workspace,
    config: Config,
    paths: JobPaths,
    spec: JobSpec,
    output: Path,
    inputs: Sequence[Path],
) -> ExportRequest:
    """Return the request for an export; arguments are those of `export`."""
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
        contenders=contenders(config, spec, again=False),
        inputs=tuple(str(file.absolute()) for file in inputs),
        board=board,
        cuda_graph=config.export.cuda_graph,
        kept_bytes=config.export.kept_bytes,
    )


def contenders(config: Config, spec: JobSpec, *, again: bool) -> int:
    """Return how many of the best candidates of a task are timed again at most; 1 for none.

    None is where the queue has timed them as the library runs them: on this machine, with as many threads, and with
    their arguments where the model has them. `again` says that they are timed again all the same.
    """
    if spec.board:
        return 1
    in_context = devices.of_job(spec, config).held_by(spec.target_key) is not None
    as_exported = in_context and int(spec.target.get("num-cores", 0)) == capacity.threads(config)
    return 1 if as_exported and not again else config.export.contenders


def _tolerance(config: Config, spec: JobSpec) -> float:
    limits = config.export
    if spec.activations == "int8":
        return limits.tolerance_activations
    other = {"fp16": limits.tolerance_fp16, "tf32": limits.tolerance_tf32, "bf16": limits.tolerance_bf16}
    return other.get(spec.precision, limits.tolerance)  # in int8, it is compared with the quantised model
