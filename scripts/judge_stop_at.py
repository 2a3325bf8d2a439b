#!/usr/bin/env python3
"""Judge `submit --stop-at`: tune a model several times from nothing, and time each library that comes out.

    python scripts/judge_stop_at.py squeezenet.onnx --level 5ms --times 10

Each time has a workspace and a seed of its own. The library is exported, then timed in fresh processes, in turn with
ONNX Runtime on the same model. The machine is quiet while ONNX Runtime takes at most a tenth longer than it ever did
here; only these timings of the library count. Turns are made until five have some. A row says how many trials the job
took, what the last confirmation measured, the time of the library as a share of the level (the median of the turns,
with the fastest and the slowest), and how many timings were made on a quiet machine. Nothing else should run on it.
"""

from __future__ import annotations

import argparse
import math
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
from autotune.tvm_backend.export.timing.comparison import TIMINGS, Runtime, RuntimeComparison

_TURNS, _MOST_TURNS = 5, 30
_QUIET = 1.1  # how many times its fastest timing the reference may take on a quiet machine
_SLACK = 1.03  # a library that misses the level may be slower by this at most


@dataclass
class Reference:
    """The fastest timing of the reference runtime on this machine so far, in milliseconds."""

    fastest_ms: float = math.inf

    def quiet(self, ours_ms: Sequence[float], theirs_ms: Sequence[float]) -> list[float]:
        """Return our timings that were made on a quiet machine."""
        self.fastest_ms = min(self.fastest_ms, *theirs_ms)
        limit = _QUIET * self.fastest_ms
        return [ours for ours, theirs in zip(ours_ms, theirs_ms, strict=True) if theirs <= limit]


@dataclass(frozen=True)
class Timed:
    """A library: its times in milliseconds on the quiet machine, by turns, and how many timings were made at all."""

    turns_ms: tuple[tuple[float, ...], ...]
    timings: int

    @property
    def medians_ms(self) -> list[float]:
        return [statistics.median(turn) for turn in self.turns_ms]

    @property
    def median_ms(self) -> float:
        """The median over the turns; not a number where the machine was never quiet."""
        return statistics.median(self.medians_ms) if self.turns_ms else math.nan


@dataclass(frozen=True)
class Result:
    """One job: how long it tuned, and how fast its library is."""

    state: str
    trials: int
    seconds: float
    confirmed_ms: float | None
    library: Timed


def main() -> int:
    options = parse()
    level_ms, results, reference = parse_latency(options.level) or 0.0, list[Result](), Reference()
    heads = ("seed", "ended as", "trials", "seconds", "confirmed ms", "library ms", "of the level", "quiet timings")
    print(f"| {' | '.join(heads)} |\n" + "|---" * len(heads) + "|")
    for seed in range(options.times):
        with tempfile.TemporaryDirectory(prefix="stop-at-") as folder:
            results.append(tuned(options, seed, Path(folder), reference))
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


def tuned(options: argparse.Namespace, seed: int, folder: Path, reference: Reference) -> Result:
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
    state, library = read_state(paths), time_library(folder / "out", reference)
    trials = sum(task.trials for task in state.tasks)
    return Result(state.state, trials, seconds, confirmed_ms(paths), library)


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


def time_library(folder: Path, reference: Reference) -> Timed:
    """Time a library in fresh processes until enough turns were made on a quiet machine."""
    export, turns, timings = Export.read(folder), list[tuple[float, ...]](), 0
    runtimes = {"ours": export.library, "theirs": Runtime("onnxruntime", export.model)}
    with RuntimeComparison(runtimes, export.inputs, export.arrays(), export.threads) as comparison:
        for _ in range(_MOST_TURNS):
            times = comparison.time(TIMINGS)
            (ours,), (theirs,) = times["ours"].timings_ms, times["theirs"].timings_ms
            timings += len(ours)
            if quiet := reference.quiet(ours, theirs):
                turns.append(tuple(quiet))
            if len(turns) == _TURNS:
                break
    return Timed(tuple(turns), timings)


def row(seed: int, found: Result, level_ms: float) -> str:
    confirmed = "" if found.confirmed_ms is None else f"{found.confirmed_ms:.2f}"
    cells = [seed, found.state, found.trials, f"{found.seconds:.0f}", confirmed, f"{found.library.median_ms:.2f}"]
    quiet = f"{sum(map(len, found.library.turns_ms))} of {found.library.timings}"
    return f"| {' | '.join(map(str, cells))} | {shares(found.library, level_ms)} | {quiet} |"


def shares(library: Timed, level_ms: float) -> str:
    """The time of a library as a share of the level, and its range over the turns."""
    if not library.turns_ms:
        return "the machine was not quiet"
    low, high = min(library.medians_ms) / level_ms, max(library.medians_ms) / level_ms
    return f"{library.median_ms / level_ms:.2f} ({low:.2f} to {high:.2f})"


def verdict(results: Sequence[Result], level_ms: float) -> str:
    """Say how many libraries meet the level, and by how much the others miss it."""
    found = [result.library.median_ms / level_ms for result in results]
    met, near = sum(share <= 1 for share in found), sum(1 < share <= _SLACK for share in found)
    return f"\n{met} of {len(found)} libraries meet {level_ms:g} ms, {near} miss it by at most {_SLACK - 1:.0%}"


if __name__ == "__main__":
    sys.exit(main())
