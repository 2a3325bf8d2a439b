#!/usr/bin/env python
"""Kill a sweep of real models with its daemon and workers twice, and check that it ends with every point once.

    python scripts/check_sweep.py --models mlp mlp@2 tiny_cnn --strategies beam random --seeds 3 --trials 4

The models are those of make_models.py, `mlp@2` with a batch size of 2; each is compiled and measured on this machine.
The sweep is killed when a third and when two thirds of its points have ended, and started again. Prints a line for
each kill and a verdict; exits 1 if a point is missing, is there twice, or has a trial twice. Takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from check_resume import kill_all

from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

MAKE = Path(__file__).parent / "make_models.py"


def main() -> None:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="check-sweep-"))
    suite, points = make_suite(root, options)
    sweep = [sys.executable, "-m", "autotune", "--workspace", str(root), "sweep", str(suite), "--json"]
    for part in (1, 2):
        running = subprocess.Popen(sweep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while ended(root) < part * points // 3:
            if running.poll() is not None:
                sys.exit(f"the sweep ended by itself with exit code {running.returncode}; see {root}")
            time.sleep(0.2)
        killed = kill_all(root)
        running.wait()
        print(f"kill {part}: {killed} processes, {ended(root)} of {points} points had ended", flush=True)
    found = json.loads(subprocess.run(sweep, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    verdict(root, points, options.trials, found["points"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "mlp@2", "tiny_cnn"], help="NAME or NAME@BATCH")
    parser.add_argument("--strategies", nargs="+", default=["beam", "random"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=4)
    return parser.parse_args()


def make_suite(root: Path, options: argparse.Namespace) -> tuple[Path, int]:
    """Write the models, the settings and the suite; return the suite and how many points it has."""
    for model in options.models:
        name, _, batch = model.partition("@")
        made = [sys.executable, str(MAKE), name, "--batch", batch or "1", "--output", str(root / "made")]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        (root / "made" / f"{name}.onnx").rename(root / f"{model}.onnx")
    (root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{root}/locks"\n[job]\ntrials_per_round = 4\n')
    lists = {
        "models": [f"{model}.onnx" for model in options.models],
        "strategies": options.strategies,
        "trials": [options.trials],
        "seeds": list(range(options.seeds)),
    }
    suite = root / "suite.toml"
    suite.write_text("".join(f"{key} = {json.dumps(values)}\n" for key, values in lists.items()))
    return suite, len(options.models) * len(options.strategies) * options.seeds


def ended(root: Path) -> int:
    """Return how many jobs of a workspace are done."""
    words = [sys.executable, "-m", "autotune", "--workspace", str(root), "status", "--json"]
    jobs = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)["jobs"]
    return sum(job["state"] == "done" for job in jobs)


def trials_of_points(root: Path) -> Counter[tuple[str, str, str]]:
    """How often each point has logged each candidate of each task. Points measure for themselves what others have."""
    logs = root.glob("logs/tuning/*/*.jsonl")
    return Counter((log.name, item["hash"], item["job"]) for log in logs for item in RecordLog(log, *FORMAT).read())


def verdict(root: Path, points: int, budget: int, found: list[dict[str, object]]) -> None:
    """Print whether every point is there once, with its own trials; exit 1 if not."""
    names = {(point["model"], point["strategy"], point["seed"]) for point in found}
    jobs = sum(path.is_file() for path in root.glob("jobs/*/spec.json"))
    logged = trials_of_points(root)
    states = sorted({str(point["state"]) for point in found})
    counts = f"{len(found)} points, {len(names)} different, {jobs} jobs, {sum(logged.values())} trials, {states}"
    whole = len(found) == len(names) == jobs == points and states == ["done"] and max(logged.values()) == 1
    checked = subprocess.run([sys.executable, "-m", "autotune", "--workspace", str(root), "check"], check=False)
    if not whole or len(logged) > points * budget or checked.returncode:
        sys.exit(f"WRONG: {counts}; see {root}")
    print(f"every point once: {counts}")


if __name__ == "__main__":
    main()
