#!/usr/bin/env python
"""Compare the C++ source of networks with the libraries that are exported beside it.

    python scripts/bench/check_source.py resnet18.onnx 320n.onnx:images=1x3x320x320 --folder build/source

Each model is compiled without tuning, with the schedules that the prior likes best, and written as a library, as the
C++ program that loads it with TVM's runtime, and as source. Both programs are built with CMake. The outputs of the
source must be those that Python gets from the library, bit for bit. Then both programs run by turns; ratios are taken
within a turn. Peak memory is that of the processes, size that of all files that they need besides the C library.
Nothing else should run on the machine. With --compile-only nothing is timed; a model that is compiled already is not
compiled again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from autotune.commands.submit.model_inputs import parse_inputs
from autotune.storage.formats import InputSpec
from autotune.tvm_backend.export.inputs import draw
from autotune.tvm_backend.export.timing.comparison import Runtime, RuntimeComparison
from autotune.tvm_backend.export.writing import cpp_program, files
from autotune.tvm_backend.export.writing.source import Described, write_source

_SEED = 2026
_RUN_S = 1.0  # of one process
_PEAK_RUNS = 20
_MILLION = 1e6
_TITLES = (
    "model",
    "blocks",
    "lines",
    "library ms",
    "source ms",
    "source / library",
    "peak MB, library / source",
    "size MB, library / source",
    "ldd",
)


def main() -> None:
    options = parse()
    rows = []
    for text in options.models:
        path, _, shapes = text.partition(":")
        folder = options.folder.absolute() / Path(path).stem
        if not (folder / "inputs.json").exists():
            compile_model(Path(path), shapes.split(",") if shapes else [], folder, options.threads)
        if not options.compile_only:
            rows.append(compared(folder, options.turns, options.threads))
            print(rows[-1], flush=True)
    if rows:
        print(f"\n| {' | '.join(_TITLES)} |")
        print("|---" * len(_TITLES) + "|")
        print("\n".join(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL[:NAME=SHAPE,...]", help="ONNX files")
    parser.add_argument("--folder", type=Path, default=Path("build/source"))
    parser.add_argument("--turns", type=int, default=9, help="processes of each program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile-only", action="store_true")
    return parser.parse_args()


def compile_model(model: Path, shapes: Sequence[str], folder: Path, threads: int) -> None:
    """Write and build everything that is compared."""
    from autotune.tvm_backend.load import load_tvm

    load_tvm("llvm")
    from autotune.tvm_backend.export.compilation import build_lowered, lower_tuned
    from autotune.tvm_backend.export.runners import output_names
    from autotune.tvm_backend.kernels.build import link_shared
    from autotune.tvm_backend.models.onnx.read import read_model
    from autotune.tvm_backend.passes.prepare import prepare
    from autotune.tvm_backend.search.tasks import extract_tasks
    from autotune.tvm_backend.target import resolve_target, tvm_target

    target = tvm_target(resolve_target("llvm", threads).description)
    read = read_model(model, parse_inputs(shapes))
    prepared = prepare(read.module, target, winograd=True)
    lowered = lower_tuned(prepared, [task.program for task in extract_tasks(prepared, target)], {}, target)
    executable = build_lowered(lowered, target)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / cpp_program.FOLDER).mkdir(parents=True)
    executable.export_library(str(folder / "model.so"), fcompile=link_shared)
    function = cpp_program.Function("main", read.inputs, ())
    for name, data in cpp_program.sources(model.stem, "model.so", threads, [function], "0"):
        (folder / cpp_program.FOLDER / name).write_bytes(data)
    described = Described(model.stem, read.inputs, output_names(model), threads, "0")
    write_source(folder / files.SOURCE, lowered, executable, described)
    for name in (cpp_program.FOLDER, files.SOURCE):
        build(folder / name)
    (folder / "inputs.json").write_text(json.dumps([asdict(item) for item in read.inputs]))


def build(folder: Path) -> None:
    import tvm_ffi

    site = Path(tvm_ffi.__file__).parents[1]
    for words in (["-S", folder, "-B", folder / "build", f"-DTVM_SITE={site}"], ["--build", folder / "build"]):
        subprocess.run(["cmake", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def compared(folder: Path, turns: int, threads: int) -> str:
    """Return a row of the table."""
    inputs = [
        InputSpec(item["name"], tuple(item["shape"]), item["dtype"])
        for item in json.loads((folder / "inputs.json").read_text())
    ]
    arrays = draw(inputs, _SEED)
    files = [folder / f"input{index}.bin" for index in range(len(arrays))]
    for file, array in zip(files, arrays, strict=True):
        file.write_bytes(array.tobytes())
    programs = {name: folder / name / "build" / "main" for name in (cpp_program.FOLDER, files.SOURCE)}
    with RuntimeComparison({"library": Runtime("library", folder / "model.so")}, inputs, arrays, threads) as library:
        expected = library.outputs("library")
    run(programs[files.SOURCE], 1, files, folder, threads)
    for index, array in enumerate(expected):
        if (folder / f"output{index}.bin").read_bytes() != array.tobytes():
            raise SystemExit(f"{folder.name}: output {index} of the source is not that of the library")
    runs = timed(programs, files, folder, turns, threads)
    peaks = [peak_mb(program, files, folder, threads) for program in programs.values()]
    return row(folder, runs, peaks)


def timed(
    programs: dict[str, Path], files: Sequence[Path], folder: Path, turns: int, threads: int
) -> dict[str, list[float]]:
    """Run the programs by turns, each turn in another order."""
    once = run(programs[cpp_program.FOLDER], 3, files, folder, threads)
    repeat = max(3, min(50000, round(_RUN_S * 1e3 / max(once, 1e-3))))
    runs: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(turns):
        for name in sorted(programs, reverse=turn % 2 == 1):
            runs[name].append(run(programs[name], repeat, files, folder, threads))
    return runs


def run(program: Path, repeat: int, files: Sequence[Path], folder: Path, threads: int) -> float:
    """Return the median time of the runs in one process of a program, in milliseconds."""
    out = started(program, repeat, files, folder, threads).communicate()[0]
    found = re.search(r": ([0-9.]+) ms, the median", out)
    if found is None:
        raise SystemExit(f"{program} failed: {out}")
    return float(found[1])


def peak_mb(program: Path, files: Sequence[Path], folder: Path, threads: int) -> float:
    """Return the peak memory of a process of a program, read while it runs."""
    process, peak = started(program, _PEAK_RUNS, files, folder, threads), 0
    while process.poll() is None:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.002)
    return peak * 1024 / _MILLION


def started(program: Path, repeat: int, files: Sequence[Path], folder: Path, threads: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program, "--repeat", str(repeat), *files],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
    )


def row(folder: Path, runs: dict[str, list[float]], peaks: Sequence[float]) -> str:
    library, ours = runs[cpp_program.FOLDER], runs[files.SOURCE]
    ratios = [mine / theirs for mine, theirs in zip(ours, library, strict=True)]
    text = (folder / files.SOURCE / files.NETWORK).read_text()
    linked = subprocess.run(["ldd", folder / files.SOURCE / "build" / "main"], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in linked.splitlines() if "=>" in line]
    cells = [
        folder.name,
        str(text.count("  Block ")),
        str(text.count("\n")),
        f"{statistics.median(library):.3f}",
        f"{statistics.median(ours):.3f}",
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        f"{peaks[0]:.1f} / {peaks[1]:.1f}",
        f"{library_bytes(folder) / _MILLION:.1f} / {source_bytes(folder) / _MILLION:.1f}",
        ", ".join(names),
    ]
    return f"| {' | '.join(cells)} |"


def library_bytes(folder: Path) -> int:
    import tvm_ffi

    site = Path(tvm_ffi.__file__).parents[1]
    runtime = [site / "tvm" / "lib" / "libtvm_runtime.so", site / "tvm_ffi" / "lib" / "libtvm_ffi.so"]
    files = [folder / "model.so", folder / cpp_program.FOLDER / "build" / "main", *runtime]
    return sum(item.stat().st_size for item in files)


def source_bytes(folder: Path) -> int:
    return sum((folder / files.SOURCE / name).stat().st_size for name in ("build/main", files.WEIGHTS))


if __name__ == "__main__":
    main()
