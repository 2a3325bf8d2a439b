#!/usr/bin/env python
"""Say how busy the real daemon keeps a simulated GPU, and how many trials a second it makes. Needs no GPU.

    python scripts/gpu/busy.py [--kept-open 0]

Stages sleep as long as they should take on an H100 with 16 CPUs; everything else of them is real: the daemon, its
worker, processes, files and leases. OPEN_S is what the H100 needed before the first candidate of a measurement, and
TIMED_S what a candidate may take at most if there are to be twelve a second at 80%. That nvcc builds a candidate takes
0.87 s of a CPU (AMD EPYC, Zen 5).
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from autotune.storage import formats, journal
from autotune.storage.formats import SIMULATED, Control, JobSpec, StageFile, TaskSpec
from autotune.storage.job_files import seal_of
from autotune.storage.journal import StageDone
from autotune.storage.paths import Workspace

OPEN_S = 1.2
TIMED_S = 0.067
ROUND = 16
TASKS = {"resnet18-fp32": 21, "resnet18-tf32": 21, "resnet18-fp16": 21, "bert_layer-fp16": 8}
_SETTINGS = """
[machine]
lock_dir = "{folder}/locks"
simulated_cpus = {cpus}
[daemon]
stop_grace_s = 1
[measure]
kept_open_s = {kept_open_s}
[devices.gpu0]
kind = "simulated"
search_s = {search_s}
build_s = {build_s}
measure_s = {measure_s}
open_s = {open_s}
train_s = 0.2
spread = 0.2
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept-open", type=float, default=2.0, help="`[measure] kept_open_s`")
    parser.add_argument("--cpus", type=int, default=16)
    parser.add_argument("--search", type=float, default=1.75, help="seconds of a search")
    parser.add_argument("--build", type=float, default=14.0, help="seconds of a build of 16 candidates")
    parser.add_argument("--seconds", type=float, default=50.0, help="how long the daemon runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="busy-") as name:
        workspace = Workspace(Path(name))
        workspace.config.write_text(
            _SETTINGS.format(
                folder=name,
                cpus=options.cpus,
                kept_open_s=options.kept_open,
                search_s=options.search,
                build_s=options.build,
                measure_s=ROUND * TIMED_S,
                open_s=OPEN_S,
            )
        )
        for id, (job, tasks) in enumerate(TASKS.items(), 1):
            publish(workspace, id, job, tasks)
        run(workspace, options.seconds)
        print(told(workspace))


def publish(workspace: Workspace, id: int, name: str, count: int) -> None:
    """Publish a job for the simulated device, as `submit` would."""
    tasks = tuple(TaskSpec(f"conv{index}", f"{1000 * id + index:016x}", 1, "1x8", 0.5, True) for index in range(count))
    spec = JobSpec(
        id=id,
        name=name,
        model=f"{name}.onnx",
        target={"kind": SIMULATED},
        target_key=f"simulated-{id}",
        inputs=(),
        tasks=tasks,
        trials=320,
        trials_per_round=ROUND,
        strategy="random",
        sampler="greedy",
        known_at_submit=(0,) * count,
        submitted_at=time.time(),
    )
    paths = workspace.job(id, name)
    paths.stages.mkdir(parents=True)
    formats.write(paths.spec, replace(spec, seal=seal_of(spec.on_end, spec.tasks)))
    formats.write(paths.control, Control())
    for task in range(count):
        formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))


def run(workspace: Workspace, seconds: float) -> None:
    """Let a daemon serve the workspace for a while."""
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), "daemon", "run"]
    process = subprocess.Popen(command, stderr=(workspace.root / "said").open("w"))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.terminate()
    process.wait(60)


def told(workspace: Workspace) -> str:
    """Compare what the device did from its first measurement on with what it could."""
    events = [event for job in workspace.job_list() for event in journal.read(job.journal)]
    done = [event for event in events if isinstance(event, StageDone) and event.kind == "measure"]
    trials = sum(stage.summary["measured"] for stage in done)
    took = max(stage.began + stage.seconds for stage in done) - min(stage.began for stage in done)
    held = sum(stage.seconds for stage in done) / took
    timing = trials * TIMED_S / took
    return (
        f"{trials} trials in {len(done)} measurements, {took:.0f} s: {trials / took:.1f} a second;"
        f" candidates were timed {timing:.0%} of the time, and measurements had the device {held:.0%}"
    )


if __name__ == "__main__":
    main()
