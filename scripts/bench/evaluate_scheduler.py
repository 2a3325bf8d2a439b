#!/usr/bin/env python
"""Measure what the scheduler is worth; write docs/explanation/scheduler-measured.md and its pictures.

    python scripts/bench/evaluate_scheduler.py              # all three parts: about 45 minutes on two CPUs
    python scripts/bench/evaluate_scheduler.py --part real --trials 16 --models tiny_cnn mlp
    python scripts/bench/evaluate_scheduler.py --remeasure  # only the best kernels of the last part real, again
    python scripts/bench/evaluate_scheduler.py --render     # from the raw results that are there

real: real models on this machine's CPUs under every policy. devices: the real daemon on simulated devices, beside the
simulator. scale: the simulator alone. Needs the extra `plots`, and for `real` a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from evaluation import devices, document, real, scale

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("scale", "devices", "real")


def main() -> None:
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    options.docs.mkdir(parents=True, exist_ok=True)
    if options.remeasure:
        remeasure(options.work)
    for part in () if options.render or options.remeasure else options.part or PARTS:
        keep(options.work, part, run(part, options))
        if part == "real":
            remeasure(options.work)
    results = {part: json.loads(path.read_text()) for part in PARTS if (path := options.work / f"{part}.json").exists()}
    document.write(options.docs, results, (options.work / "commit").read_text())
    print(f"wrote {options.docs}/{document.PAGE}; raw results in {options.work}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this one; may be given again")
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument("--remeasure", action="store_true", help="measure the best kernels of the real models again")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "evaluation", help="workspaces and raw results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument(
        "--models", nargs="+", default=["squeezenet", "mobilenet_v2", "resnet18"], help="of make_models.py"
    )
    parser.add_argument("--trials", type=int, default=64, help="of each real model")
    parser.add_argument("--trials-per-round", type=int, default=8)
    parser.add_argument("--device-trials", type=int, default=160, help="of each job for simulated devices")
    parser.add_argument("--speed", type=float, default=4.0, help="of simulated devices, but for the run that is judged")
    return parser.parse_args()


def remeasure(work: Path) -> None:
    tuned = json.loads((work / "real.json").read_text())
    keep(work, "real", real.remeasured((work / "real").resolve(), tuned))


def keep(work: Path, part: str, results: Any) -> None:
    (work / f"{part}.json").write_text(json.dumps(results, indent=1))
    words = ["git", "rev-parse", "--short", "HEAD"]
    (work / "commit").write_text(subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip())


def run(part: str, options: argparse.Namespace) -> Any:
    """The raw results of a part, in folders of its own."""
    work = (options.work / part).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if part == "scale":
        return scale.run(work, options.docs)
    if part == "devices":
        return devices.run(work, options.speed, options.device_trials)
    return real.run(work, options.models, options.trials, options.trials_per_round)


if __name__ == "__main__":
    main()
