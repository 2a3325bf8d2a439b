"""Tune networks with a search for their plans and without one, with equal trials, and time what is exported by turns.

    python scripts/bench/measure_exploration.py dilated_block inception_block --trials 320 \
        --target 'llvm -mcpu=x86-64-v3'

Each network is one of `scripts/models/make_models.py`, tuned twice in a workspace of its own. The columns are the time
of the library that was tuned by the rules' plan, that of the one whose plan was searched for, and the median ratio of a
turn with its range. Two cores make some six trials a second. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exports import Export

from autotune.tvm_backend.export.timing.comparison import TIMINGS, RuntimeComparison, ratios

MODELS = Path(__file__).parents[1] / "models" / "make_models.py"
WAYS = {"rules": (), "explored": ("--explore",)}


def run(*words: str | Path) -> None:
    """Run a command, and end with its error if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr.strip()}")


def tuned(model: Path, folder: Path, options: Sequence[str]) -> Export:
    """Tune a model in a workspace of its own, unless that was done, and export it."""
    autotune = (sys.executable, "-m", "autotune", "--workspace", folder)
    if not (folder / "jobs").exists():
        folder.mkdir(parents=True, exist_ok=True)
        run(*autotune, "submit", model, *options)
    run(*autotune, "daemon", "run", "--drain")
    if not (folder / "lib").exists():
        run(*autotune, "export", "last", "--output", folder / "lib")
    return Export.read(folder / "lib")


def measured(name: str, options: argparse.Namespace) -> float:
    """Print a row for a network, and return the ratio of its times."""
    run(sys.executable, MODELS, name, "--output", options.output)
    given = ("--trials", str(options.trials), "--target", options.target)
    folders = {way: options.output / f"{name}-{way}" for way in WAYS}
    model = options.output / f"{name}.onnx"
    exports = {way: tuned(model, folders[way], (*given, *more)) for way, more in WAYS.items()}
    one = exports["rules"]
    libraries = {way: export.library for way, export in exports.items()}
    with RuntimeComparison(libraries, one.inputs, one.arrays(), one.threads) as comparison:
        times = comparison.time(options.turns * TIMINGS)
    turns = ratios(times["explored"], times["rules"])
    ratio = statistics.median(turns)
    shown = " | ".join(f"{times[way].median_ms:.3f} ms" for way in WAYS)
    print(f"| {name} | {shown} | {ratio:.3f} ({min(turns):.2f} to {max(turns):.2f}) |", flush=True)
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NETWORK")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--output", type=Path, default=Path("build/exploration"), help="Kept, and gone on with.")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    print("| network | plan of the rules | plan that was searched for | of the time |\n|---|---|---|---|", flush=True)
    logs = [math.log(measured(name, options)) for name in options.names]
    print(f"\ngeometric mean: {math.exp(statistics.mean(logs)):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
