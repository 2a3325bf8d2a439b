#!/usr/bin/env python
"""Say how many trials a second some jobs made together, beside what their CPUs could build and their GPUs measure.

    python scripts/gpu/rates.py JOB... --workspace DIR

The limits come from the seconds that the stages took: the CPUs prepare trials no faster than if all of them searched,
built and trained all the time, and the devices measure no faster than if they measured all the time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from autotune.commands.jobs import open_workspace, select_one
from autotune.errors import AutotuneError, BadState
from autotune.storage import journal
from autotune.storage.journal import StageDone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB")
    parser.add_argument("--workspace", type=Path, default=Path("."))
    options = parser.parse_args()
    try:
        workspace = open_workspace(options.workspace)
        paths = [select_one(workspace, job).journal for job in options.jobs]
        print(rates([event for path in paths for event in journal.read(path) if isinstance(event, StageDone)]))
    except AutotuneError as error:
        sys.exit(f"rates: {error}")


def rates(stages: Iterable[StageDone]) -> str:
    """Compare the rate of trials with its limits, in a sentence.

    Raises:
        BadState: Nothing was measured.
    """
    done = list(stages)
    measured = [stage for stage in done if stage.kind == "measure"]
    trials = sum(stage.summary.get("measured", 0) + stage.summary.get("failed", 0) for stage in measured)
    if not trials:
        raise BadState("these jobs have measured nothing")
    prepared = [stage for stage in done if stage.kind in ("search", "build", "train", "compile")]
    cpus = len({cpu for stage in prepared for cpu in stage.cpus})
    devices = len({stage.device for stage in measured})
    took = max(stage.began + stage.seconds for stage in done) - min(stage.began for stage in done)
    preparing = cpus * trials / max(sum(stage.seconds for stage in prepared), 1e-9)
    measuring = devices * trials / max(sum(stage.seconds for stage in measured), 1e-9)
    return (
        f"{trials} trials in {took:.0f} s: {trials / took:.2f} a second; CPUs ({cpus}) could prepare {preparing:.2f},"
        f" devices ({devices}) measure {measuring:.2f}; {trials / took / min(preparing, measuring):.0%} of the lesser"
    )


if __name__ == "__main__":
    main()
