"""Surroundings that are not as they should be: one line says so, and no script is misled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.storage.paths import Workspace

MODELS = Path(__file__).parents[2] / "scripts" / "models" / "make_models.py"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in which `autotune` is the one that is tested."""
    define = f'autotune() {{ {sys.executable} -m autotune "$@"; }}'
    return subprocess.run(["bash", "-c", f"{define}; {command}"], cwd=folder, capture_output=True, text=True)


def test_a_submission_whose_output_cannot_be_written_is_in_the_queue_and_is_no_failure(tmp_path: Path) -> None:
    made = [sys.executable, str(MODELS), "mlp", "--output", str(tmp_path)]
    subprocess.run(made, check=True, capture_output=True)
    done = shell("autotune submit mlp.onnx --target simulated --trials 4 > /dev/full", tmp_path)
    assert (done.returncode, len(Workspace(tmp_path).job_list())) == (0, 1)
    assert "in the queue as 1" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_that_was_deleted_is_no_workspace(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f"rmdir {gone}; autotune status", gone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("autotune: the current folder was deleted") and len(done.stderr.splitlines()) == 1
