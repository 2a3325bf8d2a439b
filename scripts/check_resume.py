#!/usr/bin/env python
"""Kill the daemon and all its workers at random moments of a real run, and check that nothing was lost.

    python scripts/check_resume.py resnet18.onnx --trials 160 --kills 5

Prints a line for each kill and a verdict; exits 1 when a trial was lost or measured twice, or the number is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

Trials = Counter[tuple[str, str]]


def main() -> None:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="resume-"))
    program = [sys.executable, "-m", "autotune", "--workspace", str(root)]
    subprocess.run([*program, "submit", str(options.model), "--trials", str(options.trials)], check=True)
    moments = random.Random(options.seed)
    before: Trials = Counter()
    for number in range(1, options.kills + 1):
        daemon = subprocess.Popen([*program, "daemon", "run"], stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(*options.between))
        killed = kill_all(root)
        daemon.wait()
        after = trials(root)
        print(f"kill {number}: {killed} processes, {sum(after.values())} trials in the logs", flush=True)
        if before - after:
            sys.exit(f"LOST {before - after}")
        before = after
    subprocess.run([*program, "daemon", "run", "--drain"], check=True, stderr=subprocess.DEVNULL)
    verdict(options, before, trials(root))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=160)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--between", type=float, nargs=2, default=(5.0, 25.0), metavar=("MIN", "MAX"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    return options


def kill_all(root: Path) -> int:
    """SIGKILL every process with the workspace on its command line, which forked children inherit."""
    mine = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()]
    killed = 0
    for pid in mine:
        with contextlib.suppress(OSError):
            if str(root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def trials(root: Path) -> Trials:
    """How often each candidate of each task is in the logs."""
    logs = root.glob("logs/tuning/*/*.jsonl")
    return Counter((log.name, record["hash"]) for log in logs for record in RecordLog(log, *FORMAT).read())


def verdict(options: argparse.Namespace, before: Trials, after: Trials) -> None:
    twice = sum(count - 1 for count in after.values())
    lost = sum((before - after).values())
    total = sum(after.values())
    print(f"{options.kills} kills: {total} of {options.trials} trials, {twice} measured twice, {lost} lost")
    sys.exit(0 if (total, twice, lost) == (options.trials, 0, 0) else 1)


if __name__ == "__main__":
    main()
