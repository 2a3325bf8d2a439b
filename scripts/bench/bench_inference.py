#!/usr/bin/env python
"""Compare exported libraries with the runtimes that users could choose instead.

    python scripts/bench/bench_inference.py models/resnet18.onnx models/bert.onnx --folder build/inference --trials 400
    python scripts/bench/bench_inference.py EXPORT... --kernels 10
    python scripts/bench/bench_inference.py EXPORT... --threads 1 --busy 1

A model that has no export in the folder yet is tuned and exported first, with so many trials for each. A folder that
`autotune export` wrote is taken as it is. Then every runtime runs in a process of its own, while the others wait, on
equal threads and inputs: our library, ONNX Runtime, OpenVINO (extra `bench`) in fp32 and as it comes,
torch.compile (torch, torchvision and onnx2torch), which compiles in the first turn, and TVM untuned, those of them that
are installed. The first columns are medians over the processes, in milliseconds; ratios are taken within a turn, with
their range. The limit is what the machine allowed when the library was exported: for each kernel the arithmetic, or the
bytes from beyond the L2 caches, whichever takes longer. Nothing else should run on the machine, but for the loops that
--busy starts.

The column `precision` is that of our library, for which --precision asks. As it comes, OpenVINO computes in bf16 where
the CPU can; its column says in what. All others compute a model in the precision that the file has: a quantised one in
int8 where they have kernels for it, and whatever is left in fp32. The fastest other is one of no lower precision than
ours. For int8, give them a file that `onnxruntime.quantization.quantize_static` wrote with unsigned
activations and signed weights, which is the form that all of them are fast on. Outputs may differ by a step then.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import onnx
from exports import Export

from autotune.errors import AutotuneError
from autotune.options import Precision
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison, RuntimeTimes, ratios
from autotune.tvm_backend.export.verification import accuracy
from autotune.tvm_backend.export.writing.files import REPORT

_DEFAULT = "openvino_default"
_NEEDED = {
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    _DEFAULT: ("openvino",),
    "pytorch": ("torch", "onnx2torch"),
}
_TITLES = {
    "ours": "ours",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    _DEFAULT: "OpenVINO as it comes",
    "pytorch": "torch.compile",
    "untuned": "TVM untuned",
}
_QUANTISED_TOLERANCE = 0.1  # a step of rounding, carried through the layers
_BFLOAT16_TOLERANCE = 0.05
_QUANTISED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM"}
)
_SHOWN_SETS = (
    "amx_int8",
    "amx_bf16",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "avx512f",
    "avx2",
)  # the first that the library uses is shown


def main() -> None:
    options = parse()
    if options.compile_untuned:
        compile_untuned(options.models[0], options.compile_untuned)
        return
    missing = [model for model in options.models if not (exported(options.folder, model) / REPORT).exists()]
    if missing:
        tune(missing, options)
    folders = [exported(options.folder, model) for model in options.models]
    with busy(options.busy):
        rows = [row for folder in folders if (row := compared(folder, options)) is not None]
    print(table(rows, options))
    if options.memory:
        print(memory(rows))
    for name, report, _ in rows if options.kernels else []:
        print(kernels(name, report, options.kernels))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="ONNX files, or folders of exports")
    parser.add_argument("--folder", type=Path, default=Path("build/inference"), help="workspace and exports")
    parser.add_argument("--trials", type=int, default=400, help="of a model that has to be tuned")
    parser.add_argument("--precision", default="fp32", choices=get_args(Precision), help="that it is tuned in")
    parser.add_argument("--turns", type=int, default=9, help="processes of each runtime")
    parser.add_argument("--threads", type=int, help="of each runtime (default: those of the export)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="loops that run beside and use a CPU each")
    parser.add_argument("--without", nargs="*", default=[], choices=[*_NEEDED, "untuned"], help="leave these out")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="also show the kernels that take most")
    parser.add_argument("--memory", action="store_true", help="also show the peak memory of each runtime")
    parser.add_argument("--compile-untuned", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes use a CPU each for as long as the context lasts."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def exported(folder: Path, model: Path) -> Path:
    return model if (model / REPORT).exists() else folder / "exports" / model.stem


def tune(models: Sequence[Path], options: argparse.Namespace) -> None:
    """Tune and export what is missing, as users do."""
    command = [sys.executable, "-m", "autotune", "--workspace", str(options.folder)]
    options.folder.mkdir(parents=True, exist_ok=True)
    asked = ["--trials", str(options.trials), "--precision", options.precision]
    words = [["submit", str(model), *asked] for model in models]
    words += [["daemon", "run", "--drain"]]
    words += [["export", model.stem, "--output", str(exported(options.folder, model))] for model in models]
    for arguments in words:
        if status := subprocess.run([*command, *arguments]).returncode:
            sys.exit(status)  # the command has said why


def compared(folder: Path, options: argparse.Namespace) -> tuple[str, dict[str, Any], dict[str, RuntimeTimes]] | None:
    """The times of all runtimes on the model of an export; None where ours is refused."""
    export = Export.read(folder)
    report = export.report
    name = export.report["name"]
    report["precision"] = precision(export.model, report.get("precision", "fp32"))
    tolerance = max(
        report["tolerance"], report["own_error"], _QUANTISED_TOLERANCE if report["precision"] == "int8" else 0
    )
    tolerances = {_DEFAULT: max(tolerance, _BFLOAT16_TOLERANCE)}
    chosen = available_runtimes(export, options.without)
    threads = options.threads or export.threads
    with RuntimeComparison(chosen, export.inputs, export.arrays(), threads) as comparison:
        reference = comparison.outputs("onnxruntime") if "onnxruntime" in chosen else comparison.outputs("ours")
        probabilities = export.hints.probabilities
        for runtime in list(chosen):
            try:
                allowed = tolerances.get(runtime, tolerance)
                accuracy.check(comparison.outputs(runtime), reference, allowed, probabilities)
            except AutotuneError as error:
                print(f"{name}: {_TITLES[runtime]} is left out: {error}", file=sys.stderr)
                del chosen[runtime]
        if "ours" not in chosen:
            return None
        return name, report, comparison.time(options.turns * TIMINGS)


def precision(model: Path, asked: str) -> str:
    """What a model is computed in: int8 where it is quantised, else what was asked for."""
    if model.suffix != ".onnx":
        return asked
    nodes = onnx.load(str(model), load_external_data=False).graph.node
    return "int8" if any(node.op_type in _QUANTISED for node in nodes) else asked


def default_precision() -> str:
    """What OpenVINO computes floats in as it comes."""
    import openvino

    name = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    return {"f32": "fp32", "f16": "fp16"}.get(name, name)


def available_runtimes(export: Export, without: Sequence[str]) -> dict[str, Runtime]:
    runtimes = {"ours": export.library}
    for name, packages in _NEEDED.items():
        if name not in without and all(find_spec(package) for package in packages):
            runtimes[name] = Runtime(name, export.model.resolve(), values=export.report.get("values", {}))
    if "untuned" not in without:
        library = export.folder / "untuned.so"
        if not library.exists():
            command = [sys.executable, __file__, str(export.model), "--compile-untuned", str(library)]
            subprocess.run(command, check=True)
        runtimes["untuned"] = Runtime("library", library, export.library.device)
    return runtimes


def compile_untuned(model: Path, library: Path) -> None:
    """Write what TVM makes of a model without any tuning, for the target and inputs of the export beside it."""
    from autotune.tvm_backend.load import load_tvm

    export = Export.read(library.parent)
    load_tvm(export.report["target"]["kind"])
    import tvm

    from autotune.tvm_backend.export import compilation as compiling
    from autotune.tvm_backend.models.onnx.read import read_model

    inputs = {item.name: item for item in export.inputs}
    target = tvm.target.Target(export.report["target"])
    compiling.compile_untuned(read_model(model, inputs).module, target).export_library(str(library))


def table(rows: Sequence[tuple[str, dict[str, Any], dict[str, RuntimeTimes]]], options: argparse.Namespace) -> str:
    """Markdown: the medians, the arithmetic per second of ours, and its ratio to the fastest of the others."""
    shown = [name for name in _TITLES if any(name in times for _, _, times in rows)]
    default = default_precision() if _DEFAULT in shown else ""
    titles = " | ".join(f"{_TITLES[name]} ({default})" if name == _DEFAULT else _TITLES[name] for name in shown)
    last = "ours / OpenVINO as it comes | ours / fastest other"
    lines = [f"| model | precision | {titles} | GFLOP/s | ours / limit | {last} |"]
    lines.append("|---" * (len(shown) + 6) + "|")
    shares = []
    for name, report, times in rows:
        lower = {"ours"} | ({_DEFAULT} if report["precision"] == "fp32" != default else set())
        best = min(times.keys() - lower, key=lambda other: times[other].median_ms, default="")
        against_best = ratios(times["ours"], times[best]) if best else [math.nan]
        shares.append(statistics.median(against_best))
        cells = [f"{times[item].median_ms:.3g}" if item in times else "" for item in shown]
        speed = sum(task["gflop"] * task["weight"] for task in report["tasks"]) / times["ours"].median_ms * 1e3
        limit_ms = sum(kernel["least_us"] or 0.0 for kernel in report.get("kernels", ())) / 1e3
        limit = f"{times['ours'].median_ms / limit_ms:.2f}" if limit_ms else ""
        ratio = f"{shares[-1]:.2f} ({min(against_best):.2f} to {max(against_best):.2f}, {_TITLES.get(best, '')})"
        used = next((item for item in _SHOWN_SETS if item in report.get("instructions", ())), "")
        kind = f"{report['precision']}, {used}" if used else report["precision"]
        share = f"{statistics.median(ratios(times['ours'], times[_DEFAULT])):.2f}" if _DEFAULT in times else ""
        lines.append(f"| {name} | {kind} | {' | '.join(cells)} | {speed:.0f} | {limit} | {share} | {ratio} |")
    threads = {options.threads or report["threads"] for _, report, _ in rows}
    mean = statistics.geometric_mean(shares) if shares else math.nan
    beside = f"; {options.busy} busy loops beside" if options.busy else ""
    footer = f"Geometric mean {mean:.2f}; threads {sorted(threads)}; {os.uname().machine}{beside}"
    return "\n".join([*lines, "", footer])


def memory(rows: Sequence[tuple[str, dict[str, Any], dict[str, RuntimeTimes]]]) -> str:
    """Markdown: the most memory that a model takes in each runtime while it is loaded and first run, in megabytes.

    It is counted from what the process has when the runtime is imported: the median of the processes.
    """
    shown = [name for name in _TITLES if any(name in times for _, _, times in rows)]
    lines = ["", f"| model | {' | '.join(_TITLES[name] for name in shown)} | ours / ONNX Runtime |"]
    lines.append("|---" * (len(shown) + 2) + "|")
    for model, _, times in rows:
        peaks = {name: statistics.median(of.memory) / 1e6 for name, of in times.items()}
        cells = [f"{peaks[name]:.0f}" if name in peaks else "" for name in shown]
        share = f"{peaks['ours'] / peaks['onnxruntime']:.2f}" if "onnxruntime" in peaks else ""
        lines.append(f"| {model} | {' | '.join(cells)} | {share} |")
    return "\n".join(lines)


def kernels(name: str, report: Mapping[str, Any], most: int) -> str:
    """Markdown: the kernels that take most, inside the model when it was exported, and what the machine allows.

    The limit is the time that their operations, or their bytes from beyond the L2 caches, take at least.
    """
    timed = report.get("kernels", [])
    total = sum(item["us"] for item in timed)
    lines = [f"\n{name}: {len(timed)} kernels, {total / 1e3:.2f} ms\n"]
    lines.append("| kernel | calls | us | share | GFLOP/s | GB/s | of the limit | bound by |")
    lines.append("|---" * 8 + "|")
    for item in timed[:most]:
        us = item["us"]
        calls = item["calls"]
        known = item["gflop"] is not None  # of a kernel whose work depends on values nobody knows it
        rates = f"{item['gflop'] * calls / us * 1e6:.0f} | {item['bytes'] * calls / us / 1e3:.1f}" if known else " | "
        roof = f"{item['least_us'] / us:.0%} | {item.get('bound')}" if item["least_us"] else " | "
        lines.append(f"| {item['name']} | {calls} | {us:.1f} | {us / total:.1%} | {rates} | {roof} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
