"""What the daemon itself costs: its CPU time as a share of one core, idle and while stages run.

python scripts/bench/measure_daemon.py [--seconds 60]

A real daemon serves a workspace of its own in each of three states: 20 jobs that have ended, 3 jobs that are held, and
a real small model being tuned. The CPU time is that of the daemon alone, not of its workers, from /proc/PID/stat.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autotune.commands.job_status import snapshot
from autotune.storage import formats
from autotune.storage.daemon_info import running_daemon
from autotune.storage.formats import Control, JobSpec
from autotune.storage.paths import JobPaths, Workspace

_MAKE = Path(__file__).parents[1] / "models" / "make_models.py"
_SETTLE_S = 5.0


def autotune(workspace: Workspace, *words: str) -> None:
    command = [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_s(pid: int) -> float:
    """Seconds of CPU time that a process has used: fields 14 and 15 of its stat, behind a name that may hold blanks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def copies(workspace: Workspace, original: JobPaths, count: int, control: Control) -> None:
    """Publish a job again and again, as the commands would have left it."""
    for _ in range(count):
        id = 1 + max(job.id for job in workspace.job_list())
        paths = workspace.job(id, f"copy{id}")
        shutil.copytree(original.folder, paths.folder)
        formats.write(paths.spec, replace(formats.read(JobSpec, original.spec), id=id, name=f"copy{id}"))
        formats.write(paths.control, control)


def ended(workspace: Workspace, model: Path) -> None:
    autotune(workspace, "submit", str(model), "-q")
    copies(workspace, workspace.job_list()[0], 19, Control("cancel"))
    autotune(workspace, "cancel", "1")


def held(workspace: Workspace, model: Path) -> None:
    autotune(workspace, "submit", str(model), "-q")
    copies(workspace, workspace.job_list()[0], 2, Control("hold"))
    autotune(workspace, "hold", "1")


def running(workspace: Workspace, model: Path) -> None:
    autotune(workspace, "submit", str(model), "--trials", "100000", "-q")


@contextmanager
def daemon(workspace: Workspace) -> Iterator[int]:
    with workspace.daemon_log.open("ab") as log:
        command = [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), "daemon", "run"]
        process = subprocess.Popen(command, stderr=log)
    try:
        while running_daemon(workspace) is None:
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def measure(name: str, prepare: Callable[[Workspace, Path], None], model: Path, folder: Path, seconds: float) -> None:
    root = folder / name
    root.mkdir()
    (root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{folder}/locks"\n[daemon]\nstop_grace_s = 1\n')
    workspace = Workspace(root)
    prepare(workspace, model)
    with daemon(workspace) as pid:
        time.sleep(_SETTLE_S)
        if prepare is running:
            while not snapshot(workspace)[0].trials_done:
                time.sleep(0.5)
        begun = time.monotonic()
        before = cpu_s(pid)
        time.sleep(seconds)
        used = cpu_s(pid) - before
        wall = time.monotonic() - begun
    trials = sum(job.trials_done for job in snapshot(workspace))
    print(f"{name:>8}: {used:.2f} s of CPU in {wall:.0f} s: {used / wall:.3%} of a core; {trials} trials", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0, help="how long each state is watched")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="measure-daemon-") as name:
        folder = Path(name)
        make = [sys.executable, str(_MAKE), "mlp", "tiny_cnn", "--output", name]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        for state in (ended, held, running):
            model = folder / ("tiny_cnn.onnx" if state is running else "mlp.onnx")
            measure(state.__name__, state, model, folder, chosen.seconds)


if __name__ == "__main__":
    main()
