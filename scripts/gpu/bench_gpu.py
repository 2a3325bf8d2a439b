#!/usr/bin/env python
"""Compare exported libraries with the other ways to run their models on the same GPU.

    python scripts/gpu/bench_gpu.py EXPORT... [--turns 3] [--timings 9] [--ways ours torch_compile_most]

Each way has a process of its own, with its inputs and outputs on the GPU: our library; torch eager, that as a CUDA
graph, torch.compile, and that with CUDA graphs; ONNX Runtime's CUDA provider; where it is asked for, torch.compile as
`max-autotune`, which takes minutes. What is not installed is named. They
compute in the precision of the export: torch in fp16 or bf16 with weights and inputs of that type, in TF32 where it
may be used. All processes of a turn start together and compile meanwhile; then they are timed one after the other,
while all others wait. A way whose outputs differ from those of ONNX Runtime on the CPU is left out. Times are from a
call until its outputs are there: medians over the timings, in milliseconds, and their range. Ratios are those of
neighbouring timings.
A second table has the best trial of each task and its share of the roofline: the time that its operations, at the
GPU's highest clock, or its bytes take at least. Nothing else uses that GPU meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from exports import Export

from autotune.errors import AutotuneError
from autotune.machine import gpus
from autotune.storage.scratch import scratch_folder
from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.timing import timed_process
from autotune.tvm_backend.export.timing.comparison import alternating
from autotune.tvm_backend.export.timing.runtime_process import RuntimeProcess
from autotune.tvm_backend.export.verification import accuracy

OURS = "ours"
TITLES = {
    OURS: "ours",
    "torch_eager": "torch eager",
    "torch_graph": "torch eager, CUDA graph",
    "torch_compile": "torch.compile",
    "torch_compile_graph": "torch.compile, CUDA graphs",
    "ort_cuda": "ONNX Runtime CUDA",
    "torch_compile_most": "torch.compile, max-autotune",
}
USUAL = tuple(TITLES)[:-1]
PROGRAM = str(Path(__file__).with_name("runtimes.py"))
TOLERANCE = 2e-2  # or that of the export: what is left out computes something else, and no mere rounding


@dataclass
class Network:
    """An export, the folder with the inputs of all ways, what is right, and what was seen."""

    export: Export
    folder: Path
    reference: runners.Arrays
    ways: list[str]
    left_out: dict[str, str]
    timings_ms: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, export: Export, folder: Path, asked: Sequence[str] = USUAL) -> Network:
        folder.mkdir()
        arrays = export.arrays()
        timed_process.save(folder / "inputs.npy", arrays)
        session = runners.onnx_session(export.model, os.cpu_count() or 1)
        names = [item.name for item in export.inputs]
        feed = {**dict(zip(names, arrays, strict=True)), **runners.constant_inputs(session, export.report["values"])}
        lacking = {name: why for name, why in lacks().items() if name in asked}
        ways = [name for name in asked if name not in lacking]
        return cls(export, folder, list(session.run(None, feed)), ways, lacking)

    @property
    def name(self) -> str:
        return str(self.export.report["name"])

    @property
    def precision(self) -> str:
        return str(self.export.report["precision"])

    def start(self, way: str) -> RuntimeProcess:
        os.environ["BENCH_TF32"] = "1" if self.precision == "tf32" else ""
        os.environ["BENCH_HALF"] = {"fp16": "float16", "bf16": "bfloat16"}.get(self.precision, "")
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # many processes compile at the same time
        library = self.export.library
        request = {
            "runtime": library.runtime if way == OURS else way,
            "model": str(library.model if way == OURS else self.export.model),
            "names": [item.name for item in self.export.inputs],
            "inputs": str(self.folder / "inputs.npy"),
            "device": "cuda",
            "function": library.function,
            "kept": list(library.kept) if way == OURS else [],
            "values": self.export.report["values"],
            "threads": self.export.threads,
            "outputs": str(self.folder / f"{way}.npy"),
        }
        return RuntimeProcess(TITLES[way], request, self.export.threads, (PROGRAM,))

    def load(self, way: str, process: RuntimeProcess) -> None:
        """Load a way and check its outputs; write down in `left_out` what is wrong with it."""
        try:
            process.imported()
            process.load()
            outputs = timed_process.load(self.folder / f"{way}.npy")
            accuracy.check(outputs, self.reference, max(TOLERANCE, float(self.export.report["tolerance"])))
        except AutotuneError as error:
            self.left_out[way] = str(error)

    def time(self, processes: Mapping[str, RuntimeProcess], timings: int) -> None:
        """Time the ways that were loaded. One that is left out loses what it had: no ratio would belong to it."""
        self.ways = [way for way in self.ways if way not in self.left_out]
        try:
            for way, times in alternating({way: processes[way] for way in self.ways}, timings).items():
                self.timings_ms.setdefault(way, []).extend(times)
        except AutotuneError as error:
            print(f"{self.name}: a turn is left out: {error}", file=sys.stderr)
        for way in self.left_out:
            self.timings_ms.pop(way, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path, metavar="EXPORT", help="folders of exports for CUDA")
    parser.add_argument("--turns", type=int, default=3, help="processes of each way")
    parser.add_argument("--timings", type=int, default=9, help="timings in each process")
    parser.add_argument("--ways", nargs="+", choices=TITLES, default=USUAL, help="all but the last by default")
    options = parser.parse_args()
    exports = [Export.read(folder) for folder in options.exports]
    if others := [str(item.folder) for item in exports if item.library.device != "cuda"]:
        sys.exit(f"bench_gpu: {others[0]} is not for CUDA")
    if not (found := gpus.cuda_devices()):
        sys.exit("bench_gpu: this machine shows no GPU; look with nvidia-smi")
    with scratch_folder("bench") as folder:
        networks = [Network.of(item, Path(folder) / str(index), options.ways) for index, item in enumerate(exports)]
        for _ in range(options.turns):
            turn(networks, options.timings)
    print(table(networks, found[0].name))
    print(task_table([item.export.report for item in networks]))


def lacks() -> dict[str, str]:
    """The ways that cannot be tried here, and why."""
    torch = _torch_lacks()
    missing = {name: torch for name in TITLES if torch and name.startswith("torch")}
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        missing["ort_cuda"] = "onnxruntime-gpu is not installed"
    return missing


def _torch_lacks() -> str:
    if absent := [name for name in ("torch", "onnx2torch") if find_spec(name) is None]:
        return f"{absent[0]} is not installed"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def turn(networks: Sequence[Network], timings: int) -> None:
    """Time all ways once more, in new processes."""
    with contextlib.ExitStack() as stack:
        started = [{way: stack.enter_context(item.start(way)) for way in item.ways} for item in networks]
        pairs = [(item, way, of[way]) for item, of in zip(networks, started, strict=True) for way in of]
        with ThreadPoolExecutor(max(1, len(pairs))) as pool:
            list(pool.map(lambda each: each[0].load(*each[1:]), pairs))
        for item, processes in zip(networks, started, strict=True):
            item.time(processes, timings)


def table(networks: Sequence[Network], gpu: str) -> str:
    """Markdown: the times of each way, and the ratio of ours to it."""
    lines = [gpu, "", "| network | precision | way | ms | range | ours takes |", "|---|---|---|---:|---|---:|"]
    for item in networks:
        for way, times in item.timings_ms.items():
            cells = f"{statistics.median(times):.4f} | {min(times):.4f} to {max(times):.4f}"
            lines.append(
                f"| {item.name} | {item.precision} | {TITLES[way]} | {cells} | {_share(item.timings_ms, way)} |"
            )
    for item in networks:
        for why in dict.fromkeys(item.left_out.values()):
            names = "; ".join(TITLES[way] for way, reason in item.left_out.items() if reason == why)
            lines.append(f"\n{item.name}, not timed: {names}: {why}")
    return "\n".join(lines)


def _share(timings_ms: Mapping[str, Sequence[float]], way: str) -> str:
    if way == OURS or OURS not in timings_ms:
        return ""
    return f"{statistics.median(a / b for a, b in zip(timings_ms[OURS], timings_ms[way], strict=False)):.2f} of it"


def task_table(reports: Iterable[Mapping[str, Any]]) -> str:
    """Markdown: the best trial of each task, and the least time that the GPU allows as a share of its time.

    Data that stay in the L2 cache come faster than the roofline allows.
    """
    lines = [
        "\n| network | task | times | us | GFLOP/s | GB/s | of the roofline |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for report in reports:
        lines.extend(_task_rows(report))
    return "\n".join(lines)


def _task_rows(report: Mapping[str, Any]) -> Iterator[str]:
    kernels = {kernel["task"]: kernel for kernel in report["kernels"]}
    timed = [task for task in report["tasks"] if task["best_us"] and task["name"] in kernels]
    for task in sorted(timed, key=lambda task: -task["best_us"] * task["weight"]):
        us = task["again_us"] or task["best_us"]
        kernel = kernels[task["name"]]
        rates = f"{task['gflop'] / us * 1e6:.0f} | {kernel['bytes'] / us / 1e3:.0f}"
        least = kernel["least_us"]
        share = "" if least is None else f"{least / kernel['calls'] / us:.0%}"
        yield f"| {report['name']} | {task['name']} | {task['weight']} | {us:.2f} | {rates} | {share} |"


if __name__ == "__main__":
    main()
