#!/usr/bin/env python
"""Compare a job on a model that was tuned for another kind of CPU with one on a model that nobody knows.

    python scripts/measure_known_elsewhere.py mlp --trials 144

A model of make_models.py is tuned three times with the same budget, each in a workspace of its own: for a CPU with
older instructions (--elsewhere), for this CPU alone, and for this CPU with the trials of the first merged in. Prints
after how many trials the second and the last one were as fast as the second at its end, but for --tolerance, which
covers what times vary by. Exits 1 if the last one needed more than a third of its trials for that. A task needs some
16 trials for what is known elsewhere to be tried, so the budget has to be at least three times that for each task.

And it checks that merging loses no trial and doubles none, also of the same kind of CPU, where a job then has its
budget from the start. Takes some minutes; nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from check_resume import trials

MAKE = Path(__file__).parent / "make_models.py"


def main() -> None:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="known-elsewhere-"))
    made = [sys.executable, str(MAKE), options.model, "--output", str(root)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    there, alone, taught, again = (Workspace(root / name) for name in ("there", "alone", "taught", "again"))
    model = root / f"{options.model}.onnx"
    there.tune(model, options, f"llvm -mcpu={options.elsewhere}")
    unaided = alone.tune(model, options, "llvm")
    merge(there, taught)
    aided = taught.tune(model, options, "llvm")
    merge(alone, again)
    ended = again.tune(model, options, "llvm")[-1]["latency_ms"]
    print(f"with the trials of the same kind: {ended:.4f} ms at once")
    goal = unaided[-1]["latency_ms"]
    first, second = (reached(curve, goal * (1 + options.tolerance)) for curve in (unaided, aided))
    print(f"alone {goal:.4f} ms in the end, reached after {first} of {options.trials} trials")
    print(f"known elsewhere {aided[-1]['latency_ms']:.4f} ms in the end, the same reached after {second} trials")
    if second is None or 3 * second > options.trials:
        sys.exit(f"more than a third; see {root}")


def reached(curve: list[dict[str, Any]], goal_ms: float) -> int | None:
    """Return after how many trials a latency was reached; None if it never was."""
    return next((point["trials"] for point in curve if point["latency_ms"] <= goal_ms), None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="mlp", help="of make_models.py")
    parser.add_argument("--trials", type=int, default=144)
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--elsewhere", default="x86-64-v3", help="the other CPU, as LLVM names it")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Workspace:
    """A workspace with locks of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{root}/locks"\n')

    def run(self, *words: object) -> str:
        """Run a command, and return what it prints."""
        command = [sys.executable, "-m", "autotune", "--workspace", str(self.root), *map(str, words)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def tune(self, model: Path, options: argparse.Namespace, target: str) -> list[dict[str, Any]]:
        """Tune a model, and return how its latency fell over the trials."""
        self.run("submit", model, "--target", target, "--trials", options.trials, "--seed", options.seed, "-q")
        self.run("daemon", "run", "--drain")
        (job,) = json.loads(self.run("report", "last", "--json"))["jobs"]
        curve: list[dict[str, Any]] = job["latency"]
        return curve

    def own(self) -> Counter[tuple[str, str]]:
        """Return how often each candidate of each task is in the logs."""
        return trials(self.root)


def merge(source: Workspace, goal: Workspace) -> None:
    """Merge the trials of a workspace into an empty one, twice; exit 1 if one is lost or doubled."""
    for _ in range(2):
        goal.run("trials", "merge", source.root)
        if goal.own() != source.own():
            sys.exit(f"LOST or doubled: {goal.own() - source.own()} {source.own() - goal.own()}")
    print(f"merged {sum(goal.own().values())} trials: none lost, none doubled")


if __name__ == "__main__":
    main()
