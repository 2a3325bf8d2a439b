"""Submit a job for a simulated device, as `autotune submit` does, but without a model. For the kill scenario.

    python -m kills.enqueue --workspace DIR NAME SEED TRIALS TASK...

It prints the id when the job is published. Tasks of the same name are the same task and share a tuning log.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from autotune.commands.submit.publish import Submission, publish
from autotune.config import load_config
from autotune.errors import AutotuneError
from autotune.options import InputSpec, TuningOptions
from autotune.processes.messages import ImportAnswer
from autotune.storage.formats import TaskSpec
from autotune.storage.paths import Workspace

ROUND_TRIALS = 4


def main() -> None:
    """Submit the job that the command line describes."""
    parser = argparse.ArgumentParser(prog="kills.enqueue")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("name")
    parser.add_argument("seed", type=int)
    parser.add_argument("trials", type=int)
    parser.add_argument("tasks", nargs="+")
    options = parser.parse_args()
    workspace = Workspace(options.workspace)
    tuning = TuningOptions(
        target="simulated",
        name=options.name,
        trials=options.trials,
        trials_per_round=ROUND_TRIALS,
        seed=options.seed,
    )
    request = Submission(Path(f"{options.name}.onnx"), tuning)
    tasks = tuple(
        TaskSpec(name, hashlib.sha256(name.encode()).hexdigest()[:16], weight + 1, "1x8", 0.5, True)
        for weight, name in enumerate(options.tasks)
    )
    answer = ImportAnswer(
        {"kind": "simulated"},
        "simulated-selftest",
        (InputSpec("x", (1, 8), "float32"),),
        tasks,
        (1 << 20,) * len(tasks),
    )
    try:
        spec = publish(workspace, load_config(workspace.config), request, answer)
    except AutotuneError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    sys.stdout.write(f"{spec.id}\n")


if __name__ == "__main__":
    main()
