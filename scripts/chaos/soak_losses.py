"""What the jobs of `soak.py` have lost: budgets that were not used, trials that are there twice, and false blame."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.storage import journal
from autotune.storage.formats import JobState, State
from autotune.storage.job_files import read_spec, read_state
from autotune.storage.journal import JournalEvent, StageFailed, TaskSetAside
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.tuning_log import TuningLog

OVER = ("done", "failed", "cancelled")
DRAIN_LIMIT_S = 240.0
_NOTICED_S = 10.0  # a stage whose worker is killed has failed by then
_UNNOTICED_S = 1.0  # for so long a worker that was killed can still be given a stage


@dataclass
class Losses:
    """Looks at each job once, at its end and before it is cleaned away, and at the logs when all is over.

    Attributes:
        kills: When workers were killed on purpose, in epoch seconds.
        problems: A line for everything that must not be.
        judged: The ids of the jobs that were looked at.
        failed: The trials without a time, by what failed.
        trials: How many trials there are.
    """

    root: Path
    kills: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    judged: set[int] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    trials: int = 0

    def look(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        """Judge the jobs that have come to their end since the last look."""
        for paths in Workspace(self.root).job_list():
            job = jobs.get(paths.id)
            if job is not None and job["state"] in OVER and paths.id not in self.judged:
                self.judged.add(paths.id)
                self.problems += self._of(paths, job["state"])

    def _of(self, paths: JobPaths, state: State) -> list[str]:
        events = list(journal.read(paths.journal))
        written = read_state(paths)
        if state == "cancelled":  # which `status` says before a daemon without a disk can write it
            written = replace(written, state=state)
        lacks = shortfall(paths.id, read_spec(paths).trials, written, events)
        return [*filter(None, [lacks]), *(f"job {paths.id}: {event.diagnosis}" for event in self._blamed(events))]

    def _blamed(self, events: Sequence[JournalEvent]) -> list[StageFailed]:
        """Return the stages that failed although nobody killed their worker."""
        failed = [event for event in events if isinstance(event, StageFailed)]
        return [event for event in failed if event.outcome != "crashed" or not self._killed(event)]

    def _killed(self, event: StageFailed) -> bool:
        return any(
            event.began <= moment + _UNNOTICED_S and moment <= event.at <= moment + _NOTICED_S for moment in self.kills
        )

    def drain(self) -> None:
        """Wait until no job is under way, and judge what is there."""
        for job in status(self.root).values():
            if job["state"] == "held":
                subprocess.run(command(self.root, "release", job["id"]), capture_output=True, check=False)
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while (jobs := status(self.root)) and any(job["state"] not in OVER for job in jobs.values()):
            if time.monotonic() > deadline:
                self.problems += [
                    f"job {job['id']} is still {job['state']}" for job in jobs.values() if job["state"] not in OVER
                ]
                break
            time.sleep(1)
        self.look(jobs)
        self._read_logs()
        check = subprocess.run(command(self.root, "check"), capture_output=True, text=True, check=False)
        self.problems += check.stdout.splitlines() if check.returncode else []
        log = (self.root / "daemon.log").read_text()
        if "Traceback" in log:
            self.problems.append(log[log.index("Traceback") :].splitlines()[0])

    def _read_logs(self) -> None:
        for log in (self.root / "logs" / "tuning").glob("*/*.jsonl"):
            trials = TuningLog(log).trials()
            self.trials += len(trials)
            failures = [trial.failure for trial in trials if trial.failure is not None]
            self.failed.update(f"{failure.stage}, {failure.kind}: {failure.reason}" for failure in failures)
            if log.parent.name.startswith("simulated"):
                self.problems += [f"{log.stem}: a candidate was blamed: {failure.reason}" for failure in failures]

    def __str__(self) -> str:
        lines = [f"{len(self.judged)} jobs judged at their end, {self.trials} trials, losses: {len(self.problems)}"]
        lines += [f"  {line}" for line in self.problems]
        return "\n".join([*lines, *(f"  {count} trials failed: {what}" for what, count in self.failed.most_common())])


def shortfall(id: int, total: int, state: JobState, events: Sequence[JournalEvent]) -> str:
    """What a job lacks or has too much of; empty for one that was cancelled, or has its budget and all of its tasks."""
    done = state.trials_done
    reason = state.reason.kind if state.reason else ""
    whole = done == total if reason == "budget-used" else done < total
    set_aside = any(isinstance(event, TaskSetAside) for event in events)
    good = state.state == "cancelled" or (state.state == "done" and whole and not set_aside)
    return "" if good and done <= total else f"job {id} is {state.state}, {done} of {total} trials: {reason}"


def command(root: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "autotune", "--workspace", str(root), *map(str, words)]


def status(root: Path) -> dict[int, dict[str, Any]]:
    shown = subprocess.run(command(root, "status", "--json"), capture_output=True, text=True, check=False)
    return {job["id"]: job for job in json.loads(shown.stdout)["jobs"]} if not shown.returncode else {}
