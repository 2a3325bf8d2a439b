#!/usr/bin/env python
"""Run a real daemon under traffic for a long time, and say whether it or its workers grow.

    python scripts/chaos/soak.py --minutes 30
    python scripts/chaos/soak.py --minutes 5 --faults

New small models are submitted, for this machine and for a simulated device, as fast as jobs come to their end: three
are in the queue at any time. Jobs are held and released, cancelled, exported, and cleaned away. Every few seconds the
memory, open files, threads and children of the daemon and of each worker are read from /proc.

With --faults the environment fails at random, for some seconds each time: the disk is full, a file of a job refuses to
be read, no process can be started, the lock folder is unsafe, the settings are nonsense, a worker is killed, the clock
is set. At the end the faults are over and the queue is drained. Every job that nobody cancelled, also one that was
cleaned away since, must have its budget or an end that is as good, with no trial twice, none too many, and no stage
that failed for anything but a killed worker. The trials that failed are counted by what failed.

The verdict is of the second half of the time: a line through its samples (the median of all slopes between two of
them: Sen, 1968) must not rise, from its begin to its end, by more than ALLOWED. The slope by the hour is printed too:
the shorter the time, the more can grow unseen. Each kind of worker must have been replaced, too. Prints a table and
a verdict, and exits 1 when something grows or was not replaced; then the workspace is left for a look.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from make_models import Net
from soak_faults import HOOK, Faults, parent_of, processes, role_of
from soak_losses import OVER, Losses, command, status

# What may be added within the second half: a share, and so many MiB, or ones.
ALLOWED = {"memory_mb": (0.02, 1.0), "files": (0.0, 1.0), "threads": (0.0, 1.0), "children": (0.0, 1.0)}
DAEMON = "daemon"
ACTIVE = 3
LINE = "{:18} {:10} {:>9} {:>9} {:>9} {:>10} {:>11}   {}"
SETTINGS = """
[machine]
lock_dir = "{root}/locks"
[daemon]
worker_stages = {stages}
[devices.gpu0]
kind = "simulated"
speed = 20.0
"""


@dataclass(frozen=True)
class Sample:
    """One process at one moment; `at` is in seconds since the start."""

    at: float
    role: str
    pid: int
    memory_mb: float
    files: int
    threads: int
    children: int


@dataclass(frozen=True)
class Finding:
    """What became of one figure of one role within the second half."""

    role: str
    name: str
    median: float
    largest: float
    added: float
    by_the_hour: float

    @property
    def grows(self) -> bool:
        share, absolute = ALLOWED[self.name]
        return self.added > share * self.median + absolute


def main() -> None:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    (root / "autotune.toml").write_text(SETTINGS.format(root=root, stages=options.worker_stages))
    traffic = Traffic(root, random.Random(options.seed))
    faults = Faults(root, random.Random(options.seed)) if options.faults else None
    if faults is not None:
        traffic.losses.kills = faults.kills
    with (root / "daemon.log").open("w") as log:
        daemon = subprocess.Popen(command(root, "daemon", "run"), stderr=log, env=environment(root))
    try:
        samples = soak(daemon, traffic, options, faults)
        traffic.finish()
        if faults is not None:
            faults.end()
        traffic.losses.drain()
    finally:
        daemon.terminate()
        daemon.wait()
        traffic.finish()
    print(
        f"{options.minutes:g} minutes, seed {options.seed}: " + ", ".join(f"{n} {k}" for k, n in traffic.done.items())
    )
    print(f"at most {traffic.most} jobs active at a time")
    if faults is not None:
        print("faults: " + ", ".join(f"{n} {k}" for k, n in sorted(faults.done.items())))
    print(traffic.losses)
    good = judge(samples) and not traffic.losses.problems
    if not good:
        sys.exit(f"the workspace is left in {root}")
    shutil.rmtree(root)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--faults", action="store_true", help="let the environment fail at random")
    parser.add_argument("--worker-stages", type=int, default=20, help="stages after which a worker is replaced")
    return parser.parse_args()


def environment(root: Path) -> dict[str, str]:
    """That of the daemon: the hook of the tests of faults does what its file says."""
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "FAULTS": str(root / "faults")}


def soak(
    daemon: subprocess.Popen[bytes], traffic: Traffic, options: argparse.Namespace, faults: Faults | None
) -> list[Sample]:
    """Look at the processes again and again, while users come and go."""
    samples: list[Sample] = []
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < 60 * options.minutes:
        samples += look(daemon.pid, now)
        traffic.turn()
        if faults is not None:
            faults.turn(daemon.pid)
        if daemon.poll() is not None:
            sys.exit(f"the daemon ended with {daemon.returncode}; the workspace is left in {traffic.root}")
        time.sleep(options.every)
    return samples


class Traffic:
    """Users: one command at a time, a new one each turn once the last has ended."""

    def __init__(self, root: Path, choose: random.Random) -> None:
        self.root = root
        self.choose = choose
        self.done: Counter[str] = Counter()
        self.losses = Losses(root)
        self.most = 0
        self._current: tuple[str, subprocess.Popen[bytes]] | None = None
        self._number = itertools.count()

    def turn(self) -> None:
        if self._current is not None:
            name, process = self._current
            if process.poll() is None:
                return
            self.done[name if process.returncode == 0 else f"{name} refused"] += 1
        words = self._next()
        quiet = subprocess.DEVNULL
        self._current = (str(words[0]), subprocess.Popen(command(self.root, *words), stdout=quiet, stderr=quiet))

    def finish(self) -> None:
        if self._current is not None:
            self._current[1].wait()

    def _next(self) -> list[object]:
        jobs = status(self.root)
        over = {id for id, job in jobs.items() if job["state"] in OVER}
        active = [id for id in jobs if id not in over]
        self.losses.look(jobs)
        self.most = max(self.most, len(active))
        if held := [id for id, job in jobs.items() if job["state"] == "held"]:
            return ["release", held[0]]
        if len(active) < ACTIVE:
            return self._submit()
        tuned = [id for id, job in jobs.items() if job["target"] == "llvm" and job["trials_done"]]
        verb = self.choose.choices(["status", "hold", "cancel", "export", "clean"], [4, 2, 1, 1 if tuned else 0, 2])[0]
        if verb == "export":
            id = self.choose.choice(tuned)
            return ["export", id, "--output", self.root / f"out-{id}"]
        return {"clean": ["clean", "--older-than", "10s"], "status": ["status"]}.get(
            str(verb), [verb, self.choose.choice(active)]
        )

    def _submit(self) -> list[object]:
        """A model that no job had before: its tasks are new, and their tuning logs short, however long this takes."""
        number = next(self._number)
        path = self.root / f"net{number}.onnx"
        onnx.save(model(number), path)
        target = ["--target", "simulated"] if number % 2 else []
        return ["submit", path, "--trials", 24, "--trials-per-round", 4, *target]


def model(number: int) -> onnx.ModelProto:
    """Two dense layers of sizes of its own."""
    net = Net(f"net{number}", seed=number, batch=1)
    x = net.input("x", 48 + number)
    return net.finish(net.gemm(net.relu(net.gemm(x, 32 + number)), 16))


def look(daemon: int, at: float) -> list[Sample]:
    """The daemon and its workers, as /proc shows them; a process that ends meanwhile is left out."""
    parents = {pid: parent for pid in processes() if (parent := parent_of(pid)) is not None}
    roles = {pid: role_of(pid) for pid, parent in parents.items() if parent == daemon}
    samples = []
    for pid, role in [(daemon, DAEMON), *((pid, role) for pid, role in roles.items() if role)]:
        try:
            status = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
            files = len(os.listdir(f"/proc/{pid}/fd"))
            memory = int(status["VmRSS"].split()[0]) / 1024
            threads = int(status["Threads"])
        except (OSError, KeyError):
            continue
        children = sum(parent == pid for parent in parents.values())
        samples.append(Sample(round(at, 1), role, pid, round(memory, 2), files, threads, children))
    return samples


def judge(samples: Sequence[Sample]) -> bool:
    """Print what became of each figure, and a verdict; whether it is good."""
    findings = [find(samples, role, name) for role in sorted({sample.role for sample in samples}) for name in ALLOWED]
    print("\n" + LINE.format("second half", "", "median", "largest", "added", "by hour", "allowed", ""))
    for finding in findings:
        share, absolute = ALLOWED[finding.name]
        figures = (
            finding.median,
            finding.largest,
            finding.added,
            finding.by_the_hour,
            share * finding.median + absolute,
        )
        word = "GROWS" if finding.grows else "flat"
        print(LINE.format(finding.role, finding.name, *(f"{value:.2f}" for value in figures), word))
    lives = {role: lifetimes(samples, role) for role in {sample.role for sample in samples} - {DAEMON}}
    for role, spans in sorted(lives.items()):
        print(f"{role}s: {len(spans)}, one after the other; the longest was there for {max(spans):.0f} s")
    bad = [f"{finding.name} of {finding.role} grows" for finding in findings if finding.grows]
    bad += [f"no {role} was replaced" for role, spans in sorted(lives.items()) if len(spans) < 2]
    bad += [] if lives else ["no worker was seen"]
    print(f"verdict: {'; '.join(bad) or 'flat, and workers are replaced'}")
    return not bad


def find(samples: Sequence[Sample], role: str, name: str) -> Finding:
    """One figure of one role. A worker's is of all workers of its kind, one after the other."""
    end = max(sample.at for sample in samples)
    rows = [
        (sample.at, float(getattr(sample, name))) for sample in samples if sample.role == role and sample.at >= end / 2
    ]
    values = [value for _, value in rows] or [math.nan]
    slope = sen_slope(rows)
    return Finding(role, name, statistics.median(values), max(values), slope * end / 2, slope * 3600)


def sen_slope(rows: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two points: a few that lie far off do not matter. Per second."""
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in itertools.combinations(rows, 2) if t > s]
    return statistics.median(slopes) if slopes else 0.0


def lifetimes(samples: Sequence[Sample], role: str) -> list[float]:
    """For how long each process of a role was seen, in seconds."""
    seen: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.role == role:
            seen[sample.pid].append(sample.at)
    return [max(times) - min(times) for times in seen.values()]


if __name__ == "__main__":
    main()
