#!/usr/bin/env python3
"""Judge `submit --stop-at`: tune a model several times from nothing, and time each library that comes out.

    python scripts/judge_stop_at.py squeezenet.onnx --level 5ms --times 10

Each time has a workspace and a seed of its own. The library is exported, then timed in five fresh processes. A row says
how many trials the job took, what the confirmations measured, and the time of the library as a share of the level: the
median of the processes, with the fastest and the slowest. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.exports import Export

from autotune.commands.durations import parse_latency
from autotune.storage import formats
from autotune.storage.confirmation import Confirmation
from autotune.storage.job_files import read_state
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export.runtime_comparison import TIMINGS, RuntimeComparison

_PROCESSES = 5
_SLACK = 1.03  # a library that misses the level may be slower by this at most


@dataclass(frozen=True)
class Result:
    """One job: how long it tuned, and what its library takes in each process, in milliseconds."""

    state: str
    trials: int
    seconds: float
    confirmed_ms: float | None
    turns_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.turns_ms)


def main() -> int:
    options = parse()
    level_ms, results = parse_latency(options.level) or 0.0, list[Result]()
    print("| seed | ended as | trials | seconds | confirmed ms | library ms | of the level |\n" + "|---" * 7 + "|")
    for seed in range(options.times):
        with tempfile.TemporaryDirectory(prefix="stop-at-") as folder:
            results.append(tuned(options, seed, Path(folder)))
        print(row(seed, results[-1], level_ms), flush=True)
    print(verdict(results, level_ms))
    return 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--level", required=True, help="what --stop-at gets, such as 5ms")
    parser.add_argument("--times", type=int, default=10, help="how many jobs (default: 10)")
    parser.add_argument("--trials", type=int, default=1000, help="budget of each (default: 1000)")
    parser.add_argument("--input", action="append", default=[], help="what `submit --input` gets")
    return parser.parse_args(arguments)


def tuned(options: argparse.Namespace, seed: int, folder: Path) -> Result:
    """Tune and export the model in a new workspace, as users do, and time the library."""
    shapes = [word for item in options.input for word in ("--input", item)]
    limits = ["--stop-at", options.level, "--trials", str(options.trials), "--seed", str(seed)]
    (folder / "autotune.toml").write_text("[export]\nrepeats = 4\n")  # this script times the library itself
    began = time.monotonic()
    autotune(folder, "submit", str(options.model.resolve()), "--name", "model", *limits, *shapes)
    autotune(folder, "daemon", "run", "--drain")
    seconds = time.monotonic() - began
    autotune(folder, "export", "model", "--output", str(folder / "out"))
    (paths,) = Workspace(folder).job_list()
    state, times = read_state(paths), time_library(folder / "out")
    trials = sum(task.trials for task in state.tasks)
    return Result(state.state, trials, seconds, confirmed_ms(paths), tuple(times))


def autotune(folder: Path, *words: str) -> str:
    """Return the output of a command; end with its line where it fails."""
    command = [sys.executable, "-m", "autotune", "--workspace", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"judge_stop_at: {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def confirmed_ms(paths: JobPaths) -> float | None:
    """Return what the last confirmation measured; None if the job ended without one."""
    return formats.read(Confirmation, paths.confirmed).latency_ms if paths.confirmed.exists() else None


def time_library(folder: Path) -> list[float]:
    """Return the median of the timings of each of some fresh processes, in milliseconds."""
    export = Export.read(folder)
    with RuntimeComparison({"ours": export.library}, export.inputs, export.arrays(), export.threads) as comparison:
        return comparison.time(_PROCESSES * TIMINGS)["ours"].turns_ms


def row(seed: int, found: Result, level_ms: float) -> str:
    shares = [value / level_ms for value in (found.median_ms, min(found.turns_ms), max(found.turns_ms))]
    confirmed = "" if found.confirmed_ms is None else f"{found.confirmed_ms:.2f}"
    cells = [seed, found.state, found.trials, f"{found.seconds:.0f}", confirmed, f"{found.median_ms:.2f}"]
    return f"| {' | '.join(map(str, cells))} | {shares[0]:.2f} ({shares[1]:.2f} to {shares[2]:.2f}) |"


def verdict(results: Sequence[Result], level_ms: float) -> str:
    """Say how many libraries meet the level, and by how much the others miss it."""
    shares = [found.median_ms / level_ms for found in results]
    met, near = sum(share <= 1 for share in shares), sum(1 < share <= _SLACK for share in shares)
    return f"\n{met} of {len(shares)} libraries meet {level_ms:g} ms, {near} miss it by at most {_SLACK - 1:.0%}"


if __name__ == "__main__":
    sys.exit(main())
