#!/usr/bin/env python
"""Measure how near the time that `autotune status` shows for a model is to the time that `autotune export` finds.

    python scripts/bench/measure_estimates.py --workspace DIR JOB...

The jobs have ended, and have timed their models (`[job] whole_model`). Each is exported, timed, to a folder that is
removed again, which takes half a minute to minutes. The columns are milliseconds: the sum of the tasks' best times,
what `status` shows for the model before the export, and what the export finds; and both of these as shares of the time
of the model's own runtime, which was taken beside each. The last is the first share divided by the second: a machine
that was slow at one of the two times counts in neither. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CLOSE = 0.1  # how far an estimate may be off


@dataclass(frozen=True)
class Estimate:
    """The times of a model in milliseconds, as `status` shows them and as `export` finds them.

    Attributes:
        reference_ms: The time of the model's own runtime, which was taken beside `model_ms`.
        exported_share: `exported_ms` as a share of that time, by turns.
    """

    name: str
    tasks_ms: float
    model_ms: float
    reference_ms: float
    exported_ms: float
    exported_share: float

    @property
    def share(self) -> float:
        return self.model_ms / self.reference_ms

    @property
    def ratio(self) -> float:
        return self.share / self.exported_share

    def row(self) -> str:
        """A line of the table."""
        times_ms = [f"{item:.3g}" for item in (self.tasks_ms, self.model_ms, self.exported_ms)]
        shares = [f"{item:.2f}" for item in (self.share, self.exported_share, self.ratio)]
        return f"| {self.name} | {' | '.join(times_ms + shares)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB")
    parser.add_argument("--workspace", type=Path, required=True)
    options = parser.parse_args()
    print("| model | tasks | `status` | `export` | `status`, share | `export`, share | ratio |")
    print("|---|---|---|---|---|---|---|")
    estimates = []
    for job in options.jobs:
        estimates.append(estimate(options.workspace, job))
        print(estimates[-1].row(), flush=True)
    print(f"\n{summary(estimates)}")


def estimate(workspace: Path, job: str) -> Estimate:
    """Read the times of a job, and export it."""
    (status,) = _autotune(workspace, "status", job)["jobs"]
    model = status["whole_model"]
    if model is None or model["reference_ms"] is None:
        sys.exit(f"{job} has not timed its model beside its own runtime; see `autotune status {job}`")
    tasks_us = sum((task["best_us"] or 0.0) * task["weight"] for task in status["tasks"])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "export")
        _autotune(workspace, "export", job, "--output", str(output))
        report = json.loads((output / "report.json").read_text())
    own_share, _, _ = report[f"share_of_{report['reference']}"]
    exported_ms = report["latency"]["tuned_ms"]
    return Estimate(status["name"], tasks_us / 1e3, model["model_ms"], model["reference_ms"], exported_ms, own_share)


def _autotune(workspace: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace), *words, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stderr.strip() or f"autotune {words[0]} ended with exit code {ended.returncode}")
    return json.loads(ended.stdout)


def summary(estimates: Sequence[Estimate]) -> str:
    """How many estimates are close."""
    close = sum(abs(item.ratio - 1) <= _CLOSE for item in estimates)
    return f"{close} of {len(estimates)} within {_CLOSE:.0%}"


if __name__ == "__main__":
    main()
