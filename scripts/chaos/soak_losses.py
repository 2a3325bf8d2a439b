"""What the jobs of `soak.py` have lost: budgets that were not used, trials that are there twice, and false blame."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import StorageError
from autotune.storage.journal import StageFailed
from autotune.storage.journal import read as read_journal
from autotune.storage.tuning_log import TuningLog

OVER = ("done", "failed", "cancelled")
DRAIN_LIMIT_S = 240.0
_KILLED = "SIGKILL"  # what the diagnosis of a stage says whose worker was killed


@dataclass
class Losses:
    """Looks at each job once, at its end and before it is cleaned away, and at the logs when all is over.

    Attributes:
        found: A line for everything that must not be.
        judged: The ids of the jobs that were looked at.
        failed: The trials without a time, by what failed.
        trials: How many trials there are.
    """

    root: Path
    found: list[str] = field(default_factory=list)
    judged: set[int] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    trials: int = 0

    def look(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        """Judge the jobs that have come to their end since the last look."""
        for id, job in jobs.items():
            if job["state"] in OVER and id not in self.judged:
                self.judged.add(id)
                self.found += [*filter(None, [shortfall(job)]), *self._blamed(id)]

    def _blamed(self, id: int) -> list[str]:
        """Return the stages of a job that failed although nobody killed them."""
        lines = []
        for folder in (self.root / "jobs").glob(f"{id:04d}-*"):
            with suppress(StorageError):
                events = [event for event in read_journal(folder / "journal.jsonl") if isinstance(event, StageFailed)]
                lines += [f"job {id}: {event.diagnosis}" for event in events if _KILLED not in event.diagnosis]
        return lines

    def drain(self) -> None:
        """Wait until no job is under way, and judge what is there."""
        for job in status(self.root).values():
            if job["state"] == "held":
                subprocess.run(command(self.root, "release", job["id"]), capture_output=True, check=False)
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while (jobs := status(self.root)) and any(job["state"] not in OVER for job in jobs.values()):
            if time.monotonic() > deadline:
                self.found += [f"not drained: {line}" for job in jobs.values() if (line := shortfall(job))]
                break
            time.sleep(1)
        self.look(jobs)
        self._read_logs()
        check = subprocess.run(command(self.root, "check"), capture_output=True, text=True, check=False)
        self.found += check.stdout.splitlines() if check.returncode else []
        log = (self.root / "daemon.log").read_text()
        if "Traceback" in log:
            self.found.append(log[log.index("Traceback") :].splitlines()[0])

    def _read_logs(self) -> None:
        for log in (self.root / "logs" / "tuning").glob("*/*.jsonl"):
            trials = TuningLog(log).trials()
            self.trials += len(trials)
            failures = [trial.failure for trial in trials if trial.failure is not None]
            self.failed.update(f"{failure.stage}, {failure.kind}: {failure.reason}" for failure in failures)
            if log.parent.name.startswith("simulated"):
                self.found += [f"{log.stem}: a candidate was blamed: {failure.reason}" for failure in failures]

    def __str__(self) -> str:
        lines = [f"{len(self.judged)} jobs judged at their end, {self.trials} trials, losses: {len(self.found)}"]
        lines += [f"  {line}" for line in self.found]
        return "\n".join([*lines, *(f"  {count} trials failed: {what}" for what, count in self.failed.most_common())])


def shortfall(job: Mapping[str, Any]) -> str:
    """What a job lacks or has too much of; empty for one that was cancelled, or has its budget and all of its tasks."""
    done, total = job["trials_done"], job["trials_total"]
    whole = done == total if job["reason"] == "budget used" else done < total
    good = job["state"] == "cancelled" or (job["state"] == "done" and whole and "set aside" not in job["reason"])
    if good and done <= total:
        return ""
    return f"job {job['id']} is {job['state']}, {done} of {total} trials: {job['reason']}"


def command(root: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "autotune", "--workspace", str(root), *map(str, words)]


def status(root: Path) -> dict[int, dict[str, Any]]:
    found = subprocess.run(command(root, "status", "--json"), capture_output=True, text=True, check=False)
    return {job["id"]: job for job in json.loads(found.stdout)["jobs"]} if not found.returncode else {}
