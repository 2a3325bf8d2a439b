#!/usr/bin/env python
"""Compare tuned jobs with the other ways to run their models on the same GPU.

    python scripts/gpu/bench_gpu.py JOB... --workspace DIR [--turns 5] [--tf32]

Each way runs alone in a process of its own, by turns, with its inputs and outputs on the GPU: TVM without any tuning
(dlight's schedules); ours with a CUDA graph and without one; torch eager, that as a CUDA graph, torch.compile, and
that with graphs; ONNX Runtime's CUDA provider. What is not installed is named. A way whose outputs differ from those
of the model as submitted is left out. Times are from a call until its outputs are there: medians over the processes,
in milliseconds, and their range. The ratio is taken within a turn. A second table has the best trial of each task
and its share of the roofline: the time that its operations, at the GPU's highest clock, or its bytes take at least.
It takes a minute or two a job. Nothing else of autotune uses that GPU meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from autotune.commands.jobs import open_workspace, select_one
from autotune.config import load_config
from autotune.daemon import capacity
from autotune.errors import AutotuneError, BadInput, BadState
from autotune.machine import gpus
from autotune.machine.leases import lease
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.job_files import check_model, read_spec
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.room import scratch_folder
from autotune.tvm_backend.export import inputs
from autotune.tvm_backend.export.compilation import JobModel
from autotune.tvm_backend.export.submitted import Submitted, submitted
from autotune.tvm_backend.export.timing import accuracy, retiming
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.export.writing.report_json import kernel_work
from autotune.tvm_backend.kernels.roofline import Roofline, gpu_roofline
from autotune.tvm_backend.kernels.run import open_device
from autotune.tvm_backend.load import load_tvm

SEED = 2026
OURS = "ours"
TITLES = {
    "untuned": "TVM untuned",
    OURS: "ours, CUDA graph",
    "ours_without_graph": "ours, no graph",
    "torch_eager": "torch eager",
    "torch_graph": "torch eager, CUDA graph",
    "torch_compile": "torch.compile",
    "torch_compile_graph": "torch.compile, CUDA graphs",
    "ort_cuda": "ONNX Runtime CUDA",
}
PROGRAM = str(Path(__file__).with_name("runtimes.py"))


@dataclass(frozen=True)
class TaskShare:
    """The best trial of a task, what it does, and what the GPU allows; None where its limits are not known."""

    name: str
    weight: int
    us: float
    gflop: float
    bytes: int
    least_us: float | None


@dataclass(frozen=True)
class Found:
    """The times of each way on the model of a job, and why others have none; and its tasks, the longest one first."""

    name: str
    gpu: str
    precision: str
    times: Mapping[str, RuntimeTimes]
    left_out: Mapping[str, str]
    tasks: Sequence[TaskShare] = field(default_factory=list)


def main() -> None:
    options = parse()
    try:
        workspace = open_workspace(options.workspace)
        jobs = [select_one(workspace, job) for job in options.jobs]
        rows = [measured(workspace, paths, options) for paths in jobs]
    except AutotuneError as error:
        sys.exit(f"bench_gpu: {error}")
    print(table(rows, tf32=options.tf32))
    print(task_table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="jobs for CUDA")
    parser.add_argument("--workspace", type=Path, default=Path("."))
    parser.add_argument("--turns", type=int, default=5, help="processes of each way")
    parser.add_argument(
        "--tf32",
        action="store_true",
        help="let torch and ONNX Runtime use TF32; ours does in jobs with --precision tf32",
    )
    return parser.parse_args()


def measured(workspace: Workspace, paths: JobPaths, options: argparse.Namespace) -> Found:
    """Compile a job's best so far, and time it and the other ways.

    Raises:
        BadInput: The job is not for CUDA.
        BadState: There is no GPU of its architecture.
    """
    spec = read_spec(paths)
    if spec.target_kind != gpus.KIND:
        raise BadInput(f"{spec.name} is for {spec.target_kind}; give jobs for CUDA")
    gpu = next((item for item in gpus.cuda_devices() if item.arch == spec.target["arch"]), None)
    if gpu is None:
        raise BadState(f"{spec.name} is for {spec.target['arch']}, and this machine has no such GPU")
    check_model(paths, spec)
    config = load_config(workspace.config)
    load_tvm(gpus.KIND)
    gpu.take()  # before torch is asked whether it sees a GPU
    model = JobModel.read(paths, spec)
    best = best_trials(workspace, spec)
    with scratch_folder("bench") as folder:
        ways, missing = available(submitted(paths, spec)[0], spec, libraries(model, best, Path(folder)))
        names = [gpus.lock_name(f"{gpus.KIND}:{gpu.index}")]
        with lease(config.machine.lock_folder, names, wait_s=-1):
            for name, on in (("BENCH_TF32", options.tf32), ("BENCH_HALF", spec.precision == "fp16")):
                os.environ[name] = "1" if on else ""
            # The limit of fp16: what is left out computes something else, and no mere rounding.
            threads = capacity.threads(config)
            tolerance = config.export.tolerance_fp16
            times = compared(submitted(paths, spec)[0], spec, ways, missing, options.turns, threads, tolerance)
            limits = gpu_roofline(open_device(gpus.KIND), model.target, spec.precision)
            tasks = task_shares(model, spec, best, limits)
            return Found(spec.name, gpu.name, spec.precision, times, missing, tasks)


def best_trials(workspace: Workspace, spec: JobSpec) -> dict[str, Trial]:
    applies = retiming.Replayer(workspace.job(spec.id, spec.name), spec)
    return {hash: trials[0] for hash, trials in retiming.fastest_trials(workspace, spec, 1, applies).items()}


def libraries(model: JobModel, best: Mapping[str, Trial], folder: Path) -> dict[str, Path]:
    paths = {name: folder / f"{name}.so" for name in ("untuned", OURS, "ours_without_graph")}
    model.compile_tuned(best, paths[OURS], cuda_graph=True)
    model.compile_tuned(best, paths["ours_without_graph"])
    model.compile_untuned(paths["untuned"])
    return paths


def task_shares(model: JobModel, spec: JobSpec, best: Mapping[str, Trial], limits: Roofline | None) -> list[TaskShare]:
    """Return the tasks that have a trial with a time, the one that takes most of the model's time first."""
    hashes = {task.hash: task.hash for task in spec.tasks}
    work = {item.task: item for item in kernel_work(model.prepared, hashes, model.target).values()}
    shares = []
    for task in spec.tasks:
        trial = best.get(task.hash)
        item = work.get(task.hash)
        if trial is not None and trial.median_us and item is not None:
            least = limits.least_us(item.gflop, item.bytes) if limits else None
            shares.append(TaskShare(task.name, task.weight, trial.median_us, item.gflop, item.bytes, least))
    return sorted(shares, key=lambda item: -item.us * item.weight)


def available(model: Submitted, spec: JobSpec, files: Mapping[str, Path]) -> tuple[dict[str, Runtime], dict[str, str]]:
    """Return the ways that can be tried here, and what the others lack."""
    function = spec.all_entries[0].name
    ways = {name: Runtime("library", file, "cuda", function=function) for name, file in files.items()}
    lacking = {"torch": _torch_lacks(model.file), "ort": _ort_lacks(model.file)}
    missing = {}
    for name in (name for name in TITLES if name not in files):
        if reason := lacking[name.partition("_")[0]]:
            missing[name] = reason
        else:
            ways[name] = Runtime(name, model.file, "cuda", values=spec.values)
    return {name: ways[name] for name in TITLES if name in ways}, missing


def _torch_lacks(model: Path) -> str:
    if model.suffix == ".tflite":
        return "it runs no TensorFlow Lite models"
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return "onnx2torch is not installed" if model.suffix == ".onnx" and find_spec("onnx2torch") is None else ""


def _ort_lacks(model: Path) -> str:
    import onnxruntime

    if model.suffix != ".onnx":
        return "it runs ONNX models only"
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "" if has_cuda else "onnxruntime-gpu is not installed"


def compared(
    model: Submitted,
    spec: JobSpec,
    ways: dict[str, Runtime],
    left_out: dict[str, str],
    turns: int,
    threads: int,
    tolerance: float,
) -> dict[str, RuntimeTimes]:
    """Time the ways whose outputs are right, and write down in `left_out` what is wrong with the others."""
    entry = spec.all_entries[0]
    reference = "the model as submitted"
    chosen = inputs.verification_inputs(model, entry.inputs, None, SEED)
    runtimes = {reference: Runtime(model.runtime, model.file, values=spec.values), **ways}
    with RuntimeComparison(runtimes, entry.inputs, chosen.arrays, threads, (PROGRAM,)) as comparison:
        right = comparison.outputs(reference)
        for name in ways:
            try:
                accuracy.check(comparison.outputs(name), right, tolerance, chosen.probabilities, model.title)
            except AutotuneError as error:
                left_out[name] = str(error)
        return comparison.time(turns * TIMINGS, without={reference, *left_out})


def table(rows: Sequence[Found], *, tf32: bool) -> str:
    """Markdown: the times of each way, and the ratio of ours to it."""
    seen = ", ".join(dict.fromkeys(row.gpu for row in rows))
    lines = [
        f"{seen}; batch as submitted; TF32 {'on' if tf32 else 'off'} for torch and ONNX Runtime, never used by ours.",
        "\n| network | precision | way | ms | range | ours with a graph takes |\n|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, times in row.times.items():
            low, high = times.spread_ms
            cells = f"{times.median_ms:.4f} | {low:.4f} to {high:.4f} | {_share(row.times, name)}"
            lines.append(f"| {row.name} | {row.precision} | {TITLES[name]} | {cells} |")
    for row in rows:
        for why in dict.fromkeys(row.left_out.values()):
            names = "; ".join(TITLES[name] for name, reason in row.left_out.items() if reason == why)
            lines.append(f"\n{row.name}, not timed: {names}: {why}")
    return "\n".join(lines)


def task_table(rows: Sequence[Found]) -> str:
    """Markdown: the best trial of each task, and the least time that the GPU allows as a share of its time.

    Data that stay in the L2 cache come faster than the roofline allows.
    """
    lines = ["\n| network | task | times | us | GFLOP/s | GB/s | of the roofline |\n|---|---|---|---|---|---|---|"]
    for row in rows:
        for task in row.tasks:
            rates = f"{task.gflop / task.us * 1e6:.0f} | {task.bytes / task.us / 1e3:.0f}"
            share = "" if task.least_us is None else f"{task.least_us / task.us:.0%}"
            lines.append(f"| {row.name} | {task.name} | {task.weight} | {task.us:.2f} | {rates} | {share} |")
    return "\n".join(lines)


def _share(times: Mapping[str, RuntimeTimes], name: str) -> str:
    if name == OURS or OURS not in times:
        return ""
    return f"{statistics.median(ratios(times[OURS], times[name])):.2f} of it"


if __name__ == "__main__":
    main()
