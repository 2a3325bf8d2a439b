"""Real models on this machine's CPUs under each policy: time, the models' latency, utilisation and distortion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.config import load_config
from autotune.daemon import capacity
from autotune.machine.hardware import cpu_model
from autotune.storage.paths import Workspace

from . import workspaces

SEED = 11
POLICIES = ("sequential", "uncoordinated", "interleave", "predictive")
_MAKE = Path(__file__).parents[2] / "models" / "make_models.py"


def run(work: Path, models: Sequence[str], trials: int, per_round: int) -> dict[str, Any]:
    """Tune the models under every policy, each in a fresh workspace with the same seeds; `remeasured` comes next."""
    made = work / "models"
    subprocess.run([sys.executable, str(_MAKE), *models, "--output", str(made)], check=True, stdout=subprocess.DEVNULL)
    files = [made / f"{name}.onnx" for name in models]
    rows = [_policy(_folder(work, policy), policy, files, trials, per_round) for policy in POLICIES]
    cpus = len(os.sched_getaffinity(0))
    return {"cpu": cpu_model(), "cpus": cpus, "models": list(models), "trials": trials, "policies": rows}


def _folder(work: Path, policy: str) -> Path:
    return work / f"real-{policy}"


def remeasured(work: Path, results: dict[str, Any]) -> dict[str, Any]:
    """The results, with each task's best candidate rebuilt and timed again with nothing else running."""
    print("measuring the best kernels again", flush=True)
    roots = [_folder(work, row["policy"]) for row in results["policies"]]
    threads = capacity.threads(load_config(Workspace(roots[0]).config))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("remeasure.py")), *map(str, roots)],
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"measuring again failed: {done.stderr}")
    tasks = json.loads(done.stdout.splitlines()[-1])
    rows = [{**row, "tasks": tasks[str(root)]} for row, root in zip(results["policies"], roots, strict=True)]
    return {**results, "policies": rows}


def _policy(root: Path, policy: str, models: Sequence[Path], trials: int, per_round: int) -> dict[str, Any]:
    print(f"{policy}: {', '.join(model.stem for model in models)}, {trials} trials each", flush=True)
    # Nothing is timed again before it is exported: what a policy disturbed is to be seen.
    export = "[export]\ncontenders = 1\nrepeats = 10\n"
    workspace = workspaces.make(root, f'[machine]\nlock_dir = "{root}/locks"\n[job]\npatience = 0\n{export}')
    budget = ("--trials", trials, "--trials-per-round", per_round, "--seed", SEED)
    for model in models:
        workspaces.call(workspace, "submit", model, *budget, "-q")
    drained = workspaces.drain(workspace, policy)
    ran = workspaces.stages(workspace)
    return {
        "policy": policy,
        "wall_s": drained["wall_s"],
        "trials": [job["trials_done"] for job in workspaces.status(workspace)],
        "stage_s": {
            kind: sum(s.seconds for s in ran if s.kind == kind) for kind in ("search", "build", "measure", "train")
        },
        "latency": {model.stem: _latency(workspace, model.stem) for model in models},
    }


def _latency(workspace: Any, name: str) -> dict[str, float]:
    output = workspace.root / "exported" / name
    return dict(json.loads(workspaces.call(workspace, "export", name, "--output", output, "--json"))["latency"])
