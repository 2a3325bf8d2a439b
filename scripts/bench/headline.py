#!/usr/bin/env python
"""Measure the figures of the front page: tune, export and race each model, and keep a row for each.

    python scripts/bench/headline.py build/headline
    python scripts/bench/headline.py build/headline --models mobilenet_v2 bert --precisions int8 --minutes 40
    python scripts/bench/headline.py build/forty --forty    # the forty that were drawn by rule (models/zoo/forty.toml)

Rows go to docs/data/headline.json (or forty.json), one entry for each machine, with its CPU and the commit. A row that
is there at this commit is not measured again, so that the command can be ended and started again; an entry of another
commit is dropped when the first row of this one is there. Models that failed or have not been measured are listed, with
the reason. Each runtime runs as it comes (beside float32, OpenVINO is kept from bf16), in processes of its own that
take turns; nothing else should run on the machine. `python scripts/docs/write_headline.py` writes the page, the chart
and the sentence of the README from the file.

At the end stand the geometric mean of our shares and the models that are above 0.95, slowest first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_inference import compared

from autotune.commands.submit.words import parse_inputs
from autotune.machine.hardware import cpu_model
from autotune.tvm_backend.export.drawn_inputs import draw
from autotune.tvm_backend.export.timing.comparison import RuntimeTimes, ratios
from autotune.tvm_backend.export.writing.files import REPORT
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.models.hints import onnx_hints
from autotune.tvm_backend.models.onnx.read import parse_file, resolve_inputs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "models"))
from zoo.fetch import NotFetched, fetch  # noqa: E402
from zoo.listed import FORTY, ZOO, Listed  # noqa: E402

DATA = ROOT / "docs" / "data"
LARGE = ("mobilenet_v2", "resnet18", "squeezenet", "bert", "yolov8n", "open-nsfw", "ppocr-recognition")
SMALL = ("silero-vad-16k-op15", "wakeword-mycroft", "wakeword-embedding", "swift-f0", "magika")
PRECISIONS = ("int8", "bf16", "fp32")
_CALIBRATION_SAMPLES = 8
_SLOW = 0.95
_FEATURES = {
    "AMX": "amx_int8",
    "AVX512-BF16": "avx512_bf16",
    "AVX512-VNNI": "avx512_vnni",
    "AVX-VNNI": "avx_vnni",
    "AVX-512": "avx512f",
    "AVX2": "avx2",
}


@dataclass(frozen=True)
class Race:
    """A model in one precision: a row of the table. `group` is that of its bar in the chart."""

    group: str
    model: str
    precision: str


class Failed(Exception):
    """A model has no row, for this reason."""


def races(models: Sequence[str], precisions: Sequence[str]) -> Iterator[Race]:
    for precision in PRECISIONS:
        yield from (Race(precision, name, precision) for name in LARGE if precision in precisions and name in models)
    yield from (Race("small", name, "fp32") for name in SMALL if name in models)
    yield from (Race("forty", model.name, "fp32") for model in FORTY if model.name in models)


def machine() -> dict[str, Any]:
    """What the figures of a machine depend on."""
    flags = cpu_flags()
    versions = {name: importlib.metadata.version(name) for name in ("onnxruntime", "openvino", "apache-tvm")}
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {
        "cpu": cpu_model(),
        "has": [name for name, flag in _FEATURES.items() if flag in flags],
        "cpus": len(os.sched_getaffinity(0)),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
    }


def run(*words: object) -> None:
    """Run a command of autotune.

    Raises:
        Failed: it says why.
    """
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")


def listed(name: str) -> Listed:
    return next(model for model in (*ZOO, *FORTY) if model.name == name)


def calibration(model: Path, words: Sequence[str]) -> Path:
    """Samples for a model in int8, beside it: what `export` would draw for its inputs."""
    path = model.with_suffix(".npz")
    proto = parse_file(model)
    inputs = resolve_inputs(model, proto, {name: given[0] for name, given in parse_inputs(words).items()})
    drawn = [draw(inputs, seed, onnx_hints(proto)) for seed in range(_CALIBRATION_SAMPLES)]
    np.savez(
        path,
        **{item.name: np.concatenate(samples) for item, samples in zip(inputs, zip(*drawn, strict=True), strict=True)},
    )
    return path


def export(race: Race, options: argparse.Namespace) -> Path:
    """Tune a model in a workspace of its precision, and export it, unless it is there.

    Raises:
        Failed: a command failed, or the model is not to be had.
    """
    folder = options.folder / "exports" / race.precision / race.model
    if (folder / REPORT).exists():
        return folder
    model = listed(race.model)
    try:
        path = fetch(model, options.folder / "models").absolute()
    except NotFetched as error:
        raise Failed(str(error)) from error
    home = options.folder / "workspaces" / race.precision
    home.mkdir(parents=True, exist_ok=True)
    workspace = ("--workspace", home)
    words = [word for shape in model.inputs for word in ("--input", shape)]
    words += [word for value in model.values for word in ("--value", value)]
    words += ["--calibrate", calibration(path, model.inputs)] if race.precision == "int8" else []
    name = f"{race.model}-{options.trials}"
    run(*workspace, "submit", path, *words, "--precision", race.precision, "--trials", options.trials, "--name", name)
    run(*workspace, "daemon", "run", "--drain")
    run(*workspace, "export", name, "--output", folder)
    return folder


def row(race: Race, folder: Path, turns: int) -> dict[str, Any]:
    """Race an export with the runtimes that are installed, each as it comes.

    Raises:
        Failed: our outputs are not those of ONNX Runtime.
    """
    lower = "openvino_default" if race.precision == "fp32" else "openvino"  # bf16 is no rival of fp32; else it is
    without = ["pytorch", "untuned", lower]
    measured = compared(folder, argparse.Namespace(turns=turns, threads=None, without=without))
    if measured is None:
        raise Failed("its outputs differ from those of ONNX Runtime")
    _, report, times = measured
    limit_ms = sum(kernel["least_us"] or 0.0 for kernel in report["kernels"]) / 1e3
    return {**asdict(race), **shares(times), "limit_ms": round(limit_ms, 4)}


def shares(times: Mapping[str, RuntimeTimes]) -> dict[str, Any]:
    """The times of all, and ours as a share of the fastest other's: the median over the turns, and its range."""
    others = [name for name in times if name != "ours"]
    if not others:
        raise Failed("no other runtime takes it")
    best = min(others, key=lambda name: times[name].median_ms)
    share = ratios(times["ours"], times[best])
    return {
        "ms": {name: float(f"{of.median_ms:.4g}") for name, of in times.items()},
        "fastest_other": best,
        "share": [round(value, 3) for value in (statistics.median(share), min(share), max(share))],
    }


def is_there(race: Race, rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["model"] == race.model and row["precision"] == race.precision for row in rows)


def left_out(chosen: Sequence[Race], rows: Sequence[Mapping[str, Any]], forty: bool) -> list[dict[str, Any]]:
    """The races of the file that were neither run before nor chosen now."""
    every = races(names(forty), PRECISIONS)
    return [{**asdict(race), "why": "not run"} for race in every if race not in chosen and not is_there(race, rows)]


def measure(chosen: Sequence[Race], here: dict[str, Any], options: argparse.Namespace) -> None:
    """Measure what has no row yet, and write the file after each."""
    ends = time.monotonic() + 60 * options.minutes
    here["missing"] = left_out(chosen, here["rows"], options.forty)
    for race in chosen:
        if is_there(race, here["rows"]):
            continue
        try:
            if time.monotonic() > ends:
                raise Failed(f"not measured within {options.minutes:g} minutes")
            measured = row(race, export(race, options), options.turns)
            here["rows"].append(measured)
        except Failed as error:
            measured = {**asdict(race), "why": str(error)}
            here["missing"].append(measured)
        print(race.model, race.precision, measured, flush=True)
        write(results(options.forty), here)


def names(forty: bool) -> list[str]:
    return [model.name for model in FORTY] if forty else [*LARGE, *SMALL]


def results(forty: bool) -> Path:
    return DATA / ("forty.json" if forty else "headline.json")


def entries(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["machines"]) if file.exists() else []


def same_machine(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(entry[key] == other[key] for key in ("cpu", "has", "cpus"))


def write(file: Path, here: Mapping[str, Any]) -> None:
    """Put the entry of this machine in the place of the one that is there."""
    others = [entry for entry in entries(file) if not same_machine(entry, here)]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machines": [*others, here]}, indent=1) + "\n")


def begun(options: argparse.Namespace) -> dict[str, Any]:
    """The entry of this machine at this commit, with the rows that it has."""
    fresh = {**machine(), "trials": options.trials, "turns": options.turns, "rows": [], "missing": []}
    same = ("commit", "trials", "turns")
    kept = [
        entry
        for entry in entries(results(options.forty))
        if same_machine(entry, fresh) and all(entry[key] == fresh[key] for key in same)
    ]
    return kept[0] if kept else fresh


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="models, workspaces and exports; exports there are are taken")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--forty", action="store_true", help="race the forty models that were drawn by rule")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--trials", type=int, default=150, help="of each model")
    parser.add_argument("--turns", type=int, default=9, help="processes of each runtime")
    parser.add_argument("--minutes", type=float, default=600.0, help="nothing is begun after so many")
    options = parser.parse_args()
    options.models = options.models or names(options.forty)
    unknown = set(options.models) - set(names(options.forty))
    if unknown:
        parser.error(f"no model {min(unknown)}; there are {', '.join(names(options.forty))}")
    return options


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The geometric mean of our shares, and a line for each model that is slow, the slowest first."""
    shares = sorted(((row["share"][0], row["model"], row["precision"]) for row in rows), reverse=True)
    mean = statistics.geometric_mean(share for share, _, _ in shares) if shares else 0.0
    yield f"{len(shares)} rows, in the geometric mean {mean:.3f} of the fastest other"
    yield from (f"{share:.3f} {model} {precision}" for share, model, precision in shares if share > _SLOW)


def main() -> None:
    options = parse()
    here = begun(options)
    measure(list(races(options.models, options.precisions)), here, options)
    print(*summary(here["rows"]), sep="\n")


if __name__ == "__main__":
    main()
