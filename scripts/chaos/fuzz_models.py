"""Submit mutated models: each must become a whole job or one line that says what is wrong, within the limits.

    python scripts/chaos/fuzz_models.py --count 2000 --seed 1
    python scripts/chaos/fuzz_models.py --count 40 --seed 1 --command      # each through `autotune submit` itself

Mutants are small models with fields of their graph changed, or with bytes of the file changed. They go through
`autotune.commands.submit`, with everything that it does; only the importer's process is forked from one that has TVM
loaded instead of started anew. Exit code 1 when a mutant brought a traceback, a hang or a half-published job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mutate_onnx import mutant, seeds

from autotune.commands.submit.publish import Submission
from autotune.commands.submit.publish import submit as submit_job
from autotune.config import Config, load_config
from autotune.errors import AutotuneError, BadInput, StageTimeout, WorkerCrashed
from autotune.settings import MachineSettings, SubmitSettings
from autotune.storage import formats
from autotune.storage.formats import JobSpec
from autotune.storage.paths import Workspace
from autotune.workers import oneshot

_GRACE_S = 10.0
_BAD = ("traceback", "hang", "half-published", "unclear")


class Forked:
    """The importer's process, forked from this one: what `oneshot` uses of a `subprocess.Popen`."""

    def __init__(self, work: str, noise: Any) -> None:
        request, self._writer = os.pipe()
        self._reader, answer = os.pipe()
        self.returncode = 0
        self.pid = os.fork()
        if not self.pid:
            self._serve(work, noise, request, answer)
        os.close(request)
        os.close(answer)
        self.stdin = os.fdopen(self._writer, "wb")
        self.stdout = os.fdopen(self._reader, "rb")

    def _serve(self, work: str, noise: Any, request: int, answer: int) -> None:
        try:
            os.close(self._writer)
            os.close(self._reader)
            os.dup2(noise.fileno(), 1)
            os.dup2(noise.fileno(), 2)
            oneshot.serve(work, request, answer)
        finally:
            os._exit(0)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.pid:
            _, status = os.waitpid(self.pid, 0)
            self.pid = 0
            self.returncode = os.waitstatus_to_exitcode(status)
            self.stdout.close()
        return self.returncode


@dataclass
class Tally:
    """What became of the mutants: how often what, and one line for each that is not fine."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    bad: list[str] = field(default_factory=list)

    def add(self, number: int, verdict: str, reason: str, seconds: float) -> None:
        self.counts[verdict] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if verdict in _BAD:
            self.bad.append(f"mutant {number}: {verdict}: {reason}")

    def lines(self) -> list[str]:
        shown = ["accepted", "refused", "crashed", "limit", *_BAD]
        counts = ", ".join(f"{name} {self.counts[name]}" for name in shown)
        return [*self.bad, f"{sum(self.counts.values())} mutants: {counts}; slowest {self.slowest_s:.1f} s"]


def submit(workspace: Workspace, config: Config, path: Path) -> tuple[str, str]:
    """Submit one file in this process; what became of it, and why."""
    try:
        spec = submit_job(workspace, config, Submission(path), lambda text: None)
    except WorkerCrashed as error:
        return _one_line("crashed", str(error))
    except StageTimeout as error:
        return _one_line("limit", str(error))
    except BadInput as error:
        return _one_line("refused", str(error))
    except AutotuneError as error:
        return "unclear", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return _whole(workspace, spec)


def _one_line(verdict: str, text: str) -> tuple[str, str]:
    return (verdict, text) if text.strip() and len(text.splitlines()) == 1 else ("unclear", repr(text))


def _whole(workspace: Workspace, spec: JobSpec) -> tuple[str, str]:
    paths = workspace.job(spec.id, spec.name)
    files = [paths.model, paths.control, *(paths.task(index) for index in range(len(spec.tasks)))]
    files += [paths.stage(index, 0) for index in spec.tunable]
    missing = [path.name for path in files if not path.is_file()]
    if missing or formats.read(JobSpec, paths.spec) != spec:
        return "half-published", f"{missing} missing"
    return "accepted", ""


def command(workspace: Workspace, path: Path, limit_s: float) -> tuple[str, str]:
    """Submit one file as a user would; what became of it, and what it printed."""
    words = [sys.executable, "-m", "autotune", "--workspace", str(workspace.root), "submit", str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s + 2 * _GRACE_S)
    except subprocess.TimeoutExpired:
        return "hang", "the command had to be killed"
    if done.returncode == 0:
        return "accepted", ""
    if "Traceback" in done.stderr or done.returncode not in (1, 2):
        return "traceback", done.stderr[-500:]
    verdict = "refused" if done.returncode == 2 else "crashed" if "died" in done.stderr else "limit"
    return _one_line(verdict, done.stderr.strip("\n"))


def _left_over(workspace: Workspace) -> list[str]:
    """What is in jobs/ that is no whole job; and clear the folder for the next mutant."""
    wrong = []
    for path in workspace.jobs.iterdir():
        if path.is_dir():
            if not (path / "spec.json").is_file() or path.name.startswith("."):
                wrong.append(path.name)
            shutil.rmtree(path)
    return wrong


def fuzz(root: Path, count: int, seed: int, first: int = 0, as_command: bool = False, limit_s: float = 60.0) -> Tally:
    """Submit mutants number `first` to `first + count - 1` of a seed."""
    workspace = _prepare(root, limit_s)
    tally = Tally()
    parents = seeds()
    config = load_config(workspace.config)
    for number in range(first, first + count):
        rng = np.random.default_rng([seed, number])
        path = root / "mutant.onnx"
        path.write_bytes(mutant(parents, rng))
        began = time.monotonic()
        verdict, reason = command(workspace, path, limit_s) if as_command else submit(workspace, config, path)
        seconds = time.monotonic() - began
        if seconds > limit_s + _GRACE_S:
            verdict = "hang"
            reason = f"{seconds:.0f} s; {reason}"
        if left := _left_over(workspace):
            verdict, reason = ("half-published", str(left)) if verdict != "accepted" or len(left) > 1 else (verdict, "")
        tally.add(number, verdict, reason, seconds)
        if os.environ.get("FUZZ_VERBOSE"):
            print(number, verdict, reason, file=sys.stderr)
    return tally


def _prepare(root: Path, limit_s: float) -> Workspace:
    workspace = Workspace(root / "workspace")
    workspace.jobs.mkdir(parents=True)
    limits = f"[submit]\ntimeout_s = {limit_s}\nmemory_share = {SubmitSettings().memory_share / 4}\n"
    workspace.config.write_text(f'[machine]\nlock_dir = "{root / "locks"}"\n{limits}')
    return workspace


def _warm() -> None:
    """Load what the importer loads, so that a forked process has it."""
    from autotune.tvm_backend.load import load_tvm

    os.environ.update(oneshot.SINGLE_THREADED)
    load_tvm("llvm")
    import onnx
    import tvm.relax.frontend.onnx

    assert onnx and tvm and MachineSettings
    oneshot._spawn = Forked  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant, to see one again")
    parser.add_argument("--command", action="store_true", help="run `autotune submit` for each, from the start")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a submission may take")
    options = parser.parse_args()
    if not options.command:
        _warm()
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(Path(folder), options.count, options.seed, options.first, options.command, options.limit)
    print(*tally.lines(), sep="\n")
    sys.exit(1 if tally.bad else 0)


if __name__ == "__main__":
    main()
