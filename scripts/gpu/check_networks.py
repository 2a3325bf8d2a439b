#!/usr/bin/env python
"""Tune and export whole networks for CUDA on a CPU, with every kernel computed and every check on.

    python scripts/gpu/check_networks.py resnet18:tf32 resnet18:fp16 --trials 24      # some ten minutes each

The stand-in of tests/cuda_stand_in is the GPU. Candidates are verified one by one, and the library as a whole against
ONNX Runtime. Nothing is learnt of times. Needs g++ 12 on x86-64, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import models  # noqa: E402
from cuda_stand_in import StandIn, compile_libraries  # noqa: E402
from cuda_stand_in.on_cpu import image  # noqa: E402

from autotune.storage.record_log import RecordLog  # noqa: E402
from autotune.storage.tuning_log import FORMAT  # noqa: E402

SETTINGS = """\
[job]
whole_model = false
[measure]
warmup = 0
repeats = 1
min_repeat_ms = 1
gpu_spin_up_ms = 0
timeout_s = 300.0
[export]
repeats = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="+", metavar="NETWORK[:PRECISION]")
    parser.add_argument("--trials", type=int, default=24, help="of each network (default: 24)")
    options = parser.parse_args()
    if problem := image.missing():
        sys.exit(f"cannot run kernels on this CPU: {problem}")
    print("| network | precision | trials | failed | largest relative error | seconds |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stand_in = StandIn.make(compile_libraries(folder, computes=True), folder / "gpus")
        environment = {**os.environ, **stand_in.environment()}
        for network in options.networks:
            workspace = folder / network.replace(":", "-")
            workspace.mkdir()
            (workspace / "autotune.toml").write_text(f'{SETTINGS}[machine]\nlock_dir = "{folder}/locks"\n')
            print(row(network, options.trials, workspace, environment), flush=True)


def row(asked: str, trials: int, folder: Path, environment: Mapping[str, str]) -> str:
    """Tune and export a network; return its row of the table."""
    network, _, precision = asked.partition(":")
    job = f"{network}-{precision or 'fp32'}"
    begun = time.monotonic()

    def autotune(*words: object) -> str:
        command = [sys.executable, "-m", "autotune", "--workspace", str(folder), *map(str, words)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    budget = ("--trials", trials, "--trials-per-round", 2, "--precision", precision or "fp32")
    autotune("submit", models.write(network, folder), "--name", job, "--target", "cuda", *budget)
    autotune("daemon", "run", "--drain")
    autotune("export", job, "--output", folder / job)
    report: dict[str, Any] = json.loads((folder / job / "report.json").read_bytes())
    logs = folder.glob("logs/tuning/*/*.jsonl")
    failures = [record.get("failure") for log in logs for record in RecordLog(log, *FORMAT).read()]
    failed = sum(bool(failure) for failure in failures)
    cells = (network, precision or "fp32", len(failures), failed, f"{report['largest_relative_error']:.1e}")
    return f"| {' | '.join(map(str, cells))} | {time.monotonic() - begun:.0f} |"


if __name__ == "__main__":
    main()
