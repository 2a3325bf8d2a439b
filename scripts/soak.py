#!/usr/bin/env python
"""Run a real daemon under traffic for a long time, and watch whether it or its workers grow.

    python scripts/soak.py --minutes 30 --output soak

Small models are submitted, held, released, cancelled, exported and cleaned away. Every few seconds the memory,
open files, threads and children of the daemon and of each worker are read from /proc. Prints a table and a verdict:
flat means that the median of the last third is not above that of the third before by more than a tenth (and
a little, for what is counted in ones). Writes soak.csv and soak.svg; exits 1 when something grows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

MODELS = ("tiny_cnn", "mlp")
SLACK = {"memory_mb": 8.0, "files": 3.0, "threads": 2.0, "children": 2.0}
COLOURS = {"memory_mb": "#1f6feb", "files": "#d1242f", "threads": "#2da44e", "children": "#8250df"}


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


def main() -> None:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    (root / "autotune.toml").write_text(f'[machine]\nlock_dir = "{root}/locks"\n[daemon]\nworker_stages = 200\n')
    make = [sys.executable, str(Path(__file__).with_name("make_models.py")), *MODELS, "--output", str(root / "models")]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    daemon = subprocess.Popen(command(root, "daemon", "run"), stderr=subprocess.DEVNULL)
    samples: list[Sample] = []
    done: Counter[str] = Counter()
    traffic = Traffic(root, random.Random(options.seed), done)
    begun = time.monotonic()
    try:
        while (now := time.monotonic() - begun) < 60 * options.minutes:
            samples += look(daemon.pid, now)
            traffic.turn()
            if daemon.poll() is not None:
                sys.exit(f"the daemon ended with {daemon.returncode}; see {root}/logs")
            time.sleep(options.every)
    finally:
        daemon.terminate()
        daemon.wait()
        traffic.finish()
    write(samples, options.output)
    print(f"{options.minutes:g} minutes, seed {options.seed}: " + ", ".join(f"{n} {k}" for k, n in done.items()))
    sys.exit(verdict(samples))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--output", type=Path, default=Path("soak"), help="without its ending")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    return parser.parse_args()


def command(root: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "autotune", "--workspace", str(root), *map(str, words)]


class Traffic:
    """Users: one command at a time, a new one each turn once the last has ended."""

    def __init__(self, root: Path, choose: random.Random, done: Counter[str]) -> None:
        self.root, self.choose, self.done = root, choose, done
        self.current: tuple[str, subprocess.Popen[bytes]] | None = None
        self.number = itertools.count()

    def turn(self) -> None:
        if self.current is not None:
            name, process = self.current
            if process.poll() is None:
                return
            self.done[name if process.returncode == 0 else f"{name} refused"] += 1
        words = self.next()
        quiet = subprocess.DEVNULL
        self.current = (str(words[0]), subprocess.Popen(command(self.root, *words), stdout=quiet, stderr=quiet))

    def next(self) -> list[object]:
        jobs = self.jobs()
        if sum(jobs.values()) < 3:
            model = self.root / "models" / f"{self.choose.choice(MODELS)}.onnx"
            fresh = ["--fresh", "--seed", next(self.number)]
            return ["submit", model, "--trials", 24, "--trials-per-round", 4, *fresh]
        job = self.choose.choice(list(jobs))
        verb = self.choose.choices(["status", "hold", "release", "cancel", "export", "clean"], [4, 2, 4, 1, 1, 1])[0]
        if verb == "export":
            return ["export", job, "--output", self.root / f"out-{job}"]
        return {"clean": ["clean", "--older-than", "10s"], "status": ["status"]}.get(verb, [verb, job])

    def jobs(self) -> dict[int, bool]:
        """Jobs by id, and whether each goes on."""
        found = subprocess.run(command(self.root, "status", "--json"), capture_output=True, text=True, check=False)
        if found.returncode:
            return {}
        over = ("done", "failed", "cancelled")
        return {job["id"]: job["state"] not in over for job in json.loads(found.stdout)["jobs"]}

    def finish(self) -> None:
        if self.current is not None:
            self.current[1].wait()


def look(daemon: int, at: float) -> list[Sample]:
    """The daemon and its workers, as /proc shows them; a process that ends meanwhile is left out."""
    parents = {pid: parent for pid in processes() if (parent := parent_of(pid)) is not None}
    workers = [pid for pid, parent in parents.items() if parent == daemon and "autotune.worker" in line(pid)]
    found = []
    for role, pid in [("daemon", daemon), *(("worker", pid) for pid in workers)]:
        try:
            status = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
            files = len(os.listdir(f"/proc/{pid}/fd"))
            memory, threads = int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"])
        except (OSError, KeyError):
            continue
        children = sum(parent == pid for parent in parents.values())
        found.append(Sample(round(at, 1), role, pid, round(memory, 1), files, threads, children))
    return found


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def verdict(samples: list[Sample]) -> int:
    """Print how the middle third compares with the last; 1 when something grew."""
    end = max(sample.at for sample in samples)
    grew = False
    print(f"{'':8}{'':12}{'first':>10}{'middle':>10}{'last':>10}{'largest':>10}   thirds, medians")
    for role, name in itertools.product(("daemon", "worker"), SLACK):
        rows = [(sample.at, float(getattr(sample, name))) for sample in samples if sample.role == role]
        thirds = [[value for at, value in rows if third <= 3 * at / end < third + 1] for third in range(3)]
        first, middle, last = (statistics.median(values) if values else float("nan") for values in thirds)
        grown = last > 1.1 * middle + SLACK[name]
        grew = grew or grown
        largest = max((value for _, value in rows), default=float("nan"))
        word = "GROWS" if grown else "flat"
        print(f"{role:8}{name:12}{first:10.1f}{middle:10.1f}{last:10.1f}{largest:10.1f}   {word}")
    print(f"{len({sample.pid for sample in samples if sample.role == 'worker'})} workers, {len(samples)} samples")
    return int(grew)


def write(samples: list[Sample], output: Path) -> None:
    with output.with_suffix(".csv").open("w", newline="") as file:
        rows = csv.writer(file)
        names = [field.name for field in fields(Sample)]
        rows.writerow(names)
        rows.writerows([getattr(sample, name) for name in names] for sample in samples)
    output.with_suffix(".svg").write_text(chart(samples))


def chart(samples: list[Sample]) -> str:
    """A panel for each role; each line is scaled to its own largest value, which is written beside it."""
    end = max(sample.at for sample in samples) or 1.0
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="460" font-family="sans-serif" font-size="12">'
    ]
    for panel, role in enumerate(("daemon", "worker")):
        top = 20 + 220 * panel
        parts.append(f'<text x="10" y="{top}">{role}, {end / 60:.0f} minutes</text>')
        for number, (name, colour) in enumerate(COLOURS.items()):
            rows = [(sample.at, float(getattr(sample, name))) for sample in samples if sample.role == role]
            most = max((value for _, value in rows), default=0.0) or 1.0
            points = " ".join(f"{10 + 700 * at / end:.1f},{top + 190 - 170 * value / most:.1f}" for at, value in rows)
            parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
            parts.append(f'<text x="720" y="{top + 30 + 20 * number}" fill="{colour}">{name}, at most {most:g}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
