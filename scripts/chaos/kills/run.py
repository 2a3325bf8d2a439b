"""Run one round of kills: start a queue in a new workspace, kill its processes, and check what is left.

After every kill the daemon is started again, and so is every command whose process was killed. At the end the queue
must be drained, and all of these must hold:

- Every acknowledged job is there.
- No logged trial is lost, and none is in a log twice.
- No process still runs.
- `check` finds no problem.
- The next daemon deletes the leftovers.
- What was exported is whole and runs.
- Trials that travelled to another workspace and back are in both, once.
- If the result depends on the seed only, it is the same as in an undisturbed round.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.commands.check import check, parent, workers
from autotune.storage.atomic import LEFTOVER_AGE_S
from autotune.storage.job_files import read_state
from autotune.storage.leftovers import temporaries
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT
from kills import points, sharing
from kills.plan import Kill
from kills.subject import Subject

HOOK = Path(__file__).parent / "hook"
CHAOS = Path(__file__).parents[1]
_EXIT_LIMIT_S = 10.0  # for the processes of a daemon that was killed
_TRIES = 200

Trials = Counter[tuple[str, str]]


@dataclass(frozen=True)
class RoundResult:
    """The result of a round.

    Attributes:
        deaths: For each killed process, the site, or its role if it was killed at a random time.
        problems: What is wrong; empty if nothing is.
        jobs: How each job ended, by name.
        trials: How often each trial is in the logs, by task and candidate.
    """

    deaths: list[str]
    problems: list[str]
    jobs: dict[str, Any]
    trials: Trials


@dataclass
class Round:
    """A round of kills.

    Attributes:
        folder: Where it takes place. The folder must not exist yet.
        subject: The queue.
        kills: The planned kills.
        moments: Seconds to wait before each kill at a random time.
        seed: The seed of the random kills.
        record: Whether to record all steps.
        hook: The folder on the Python path of all processes. A test gives another one to break the code in them.
    """

    folder: Path
    subject: Subject
    kills: Sequence[Kill] = ()
    moments: Sequence[float] = ()
    seed: int = 0
    record: bool = False
    hook: Path = HOOK
    _problems: list[str] = field(default_factory=list)
    _random_deaths: list[str] = field(default_factory=list)
    _trials: Trials = field(default_factory=Counter)

    def run(self) -> RoundResult:
        """Run the round. Whatever the processes do, it raises no error.

        Returns:
            The result.
        """
        self._random = random.Random(self.seed)
        self._left = list(self.moments)
        self._prepare()
        self._submit()
        for verb in ("hold", "release"):
            self._command(verb, "1")
        self._drain()
        if self.subject.shared:
            self._share()
        if self.subject.exported:
            self._export()
        jobs = self._jobs()
        self._judge(jobs)
        if not self._problems:  # otherwise the files are kept for a look
            self._command("clean", "--finished")
            self._problems += check(self.workspace)
        return RoundResult(self._deaths(), self._problems, jobs, self._trials)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.folder / "workspace")

    @property
    def other(self) -> Workspace:
        """The workspace that trials travel to."""
        return Workspace(self.folder / "other")

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def _prepare(self) -> None:
        for folder in (self.workspace.root, self.orders):
            folder.mkdir(parents=True)
        locks = self.folder / "locks"
        self.workspace.config.write_text(self.subject.settings.replace("{locks}", str(locks)))
        orders = {
            "roots": [str(self.workspace.root), str(self.other.root), str(locks)],
            "daemon_info": str(self.workspace.daemon_info),
            "record": self.record,
            "kills": [kill.__dict__ for kill in self.kills],
        }
        (self.orders / points.ORDERS).write_text(json.dumps(orders))
        if self.subject.shared:
            self.other.root.mkdir()
            sharing.prepare(self.workspace, self.other)

    def _start(self, words: Sequence[str], armed: bool = True) -> subprocess.Popen[str]:
        environment = {**hooked(self.hook), points.VARIABLE: str(self.orders)}
        with (self.folder / "output").open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                env=environment if armed else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def _submit(self) -> None:
        """Submit each job until it is in the queue, whether its submission was acknowledged or killed."""
        for name, words in self.subject.submissions(self.workspace.root):
            for _ in range(_TRIES):
                process = self._start(words)
                text = process.communicate()[0]
                there = {job.folder.name.split("-", 1)[1]: job.id for job in self.workspace.job_list()}
                if process.returncode == 0 and there.get(name) != int(text or -1):
                    self._problems.append(f"job {name} was acknowledged as {text.strip()} and is not there")
                    return
                if name in there:
                    break
            else:
                self._problems.append(f"job {name} was not accepted in {_TRIES} tries")

    def _command(self, *words: str) -> None:
        """Run a command until its process is not killed."""
        for _ in range(_TRIES):
            process = self._start(["autotune", "--workspace", str(self.workspace.root), *words])
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                return
        self._problems.append(f"{words[0]} was killed {_TRIES} times")

    def _share(self) -> None:
        """Carry trials to another workspace and back, each step until its process is not killed."""
        file = self.workspace.root / "trials.gz"
        for words in sharing.commands(self.workspace, self.other, file):
            code = -signal.SIGKILL
            for _ in range(_TRIES):
                process = self._start(["autotune", *words])
                process.communicate()
                code = process.returncode
                self._problems += sharing.torn(file)
                if code != -signal.SIGKILL:
                    break
            if code:
                self._problems.append(f"{' '.join(words[2:])} ended with {code}")
        self._problems += sharing.losses(self.workspace, self.other)

    def _export(self) -> None:
        """Export each job until no process of it was killed. What is there then must be whole, and run."""
        for job in self.workspace.job_list():
            output = self.workspace.root / "exported" / job.folder.name
            for _ in range(_TRIES):
                process = self._start(
                    ["autotune", "--workspace", str(self.workspace.root), "export", str(job.id), "-o", str(output)]
                )
                process.communicate()
                if process.returncode == 0:
                    break
            else:
                self._problems.append(f"job {job.id} was not exported in {_TRIES} tries")
                continue
            ran = subprocess.run([sys.executable, str(output / "run.py")], capture_output=True, text=True, check=False)
            if ran.returncode or not (output / "report.json").exists():
                self._problems.append(f"the export of job {job.id} does not run: {ran.stderr.strip()[-200:]}")

    def _drain(self) -> None:
        deadline = time.monotonic() + self.subject.limit_s
        for _ in range(_TRIES):
            code = self._serve(deadline)
            if code != -signal.SIGKILL:
                break
        if code is None:
            self._problems.append(f"the queue was not drained within {self.subject.limit_s:g} s")
        elif code:
            self._problems.append(f"the daemon ended with {code}")

    def _serve(self, deadline: float, armed: bool = True) -> int | None:
        """Run a daemon until it ends or is killed, and kill processes at random times.

        Returns:
            Its exit code; None if it did not end in time.
        """
        daemon = self._start(["autotune", "--workspace", str(self.workspace.root), "daemon", "run", "--drain"], armed)
        while True:
            wait = max(0.0, min(self._left[0] if self._left and armed else 1e9, deadline - time.monotonic()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.communicate(timeout=wait)
                break
            if time.monotonic() >= deadline:
                daemon.kill()
                daemon.communicate()
                return None
            self._left.pop(0)
            self._kill_random(daemon)
        self._settled()
        return daemon.returncode

    def _kill_random(self, daemon: subprocess.Popen[str]) -> None:
        candidates = sorted(self._victims())
        if not candidates or self._random.random() < 0.3:
            victim = daemon.pid
            who = "daemon"
        else:
            victim = self._random.choice(candidates)
            who = "worker or stage"
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self._random_deaths.append(f"{who}, at a random time")

    def _victims(self) -> set[int]:
        """Return the processes that may be killed: workers and what they have forked.

        If the result must depend on the seed only, the processes of candidates are left out, because a candidate whose
        process is killed becomes a failed trial.
        """
        pids = workers(self.workspace)
        if not self.subject.steady:
            return pids
        return {pid for pid in pids if parent(pid) not in pids or parent(parent(pid)) not in pids}

    def _settled(self) -> None:
        """Check after a daemon has ended that its processes have ended and that no logged trial is lost."""
        deadline = time.monotonic() + _EXIT_LIMIT_S
        while workers(self.workspace) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left := workers(self.workspace):
            self._problems.append(f"processes {sorted(left)} outlived their daemon by {_EXIT_LIMIT_S:g} s")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        before = self._trials
        self._trials = self._logged()
        self._problems += [f"{task}: trial {hash} was lost" for task, hash in before - self._trials]

    def _logged(self) -> Trials:
        logs = self.workspace.logs.glob("tuning/*/*.jsonl")
        return Counter((log.stem, str(record["hash"])) for log in logs for record in RecordLog(log, *FORMAT).read())

    def _jobs(self) -> dict[str, Any]:
        """Return how each job ended, by name. Ids would differ, because a killed submission may have used one."""
        ends = {}
        for job in self.workspace.job_list():
            state = read_state(job)
            best = [(task.trials, task.best_us) for task in state.tasks]
            ends[job.folder.name.split("-", 1)[1]] = [state.state, state.reason, state.trials_done, best]
        return ends

    def _judge(self, jobs: dict[str, Any]) -> None:
        for name, (state, reason, *_) in jobs.items():
            if state != "done":
                self._problems.append(f"job {name} is {state}: {reason}")
        self._problems += check(self.workspace)
        long_ago = time.time() - 2 * LEFTOVER_AGE_S
        for path in temporaries(self.workspace):
            os.utime(path, (long_ago, long_ago))
        self._serve(time.monotonic() + self.subject.limit_s, armed=False)
        self._problems += [f"{path} was not deleted" for path in temporaries(self.workspace)]

    def _deaths(self) -> list[str]:
        deaths = list(self._random_deaths)
        with contextlib.suppress(FileNotFoundError):
            lines = (self.orders / points.DEATHS).read_text().splitlines()
            deaths += [json.loads(line)["site"] for line in lines]
        return deaths


def hooked(hook: Path) -> dict[str, str]:
    """Return the environment of a Python process that runs `sitecustomize.py` of this folder at its start."""
    path = filter(None, [str(hook), str(CHAOS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def differences(undisturbed: RoundResult, other: RoundResult) -> list[str]:
    """Compare the results of two rounds with the same seed.

    Args:
        undisturbed: The result without kills.
        other: The result with kills.

    Returns:
        A line for each difference.
    """
    lines = [f"trial {hash} of {task} is missing" for task, hash in undisturbed.trials - other.trials]
    lines += [f"trial {hash} of {task} is one too many" for task, hash in other.trials - undisturbed.trials]
    if undisturbed.jobs != other.jobs:
        lines.append(f"the jobs ended as {other.jobs}, undisturbed as {undisturbed.jobs}")
    return lines


def read_trace(round: Round) -> list[dict[str, Any]]:
    """Return the steps of a recorded round, in order."""
    return [json.loads(line) for line in (round.orders / points.TRACE).read_text().splitlines()]


def sites_of(trace: list[dict[str, Any]], steady: bool) -> Counter[str]:
    """Count the steps at which a process can be killed, by site.

    Args:
        trace: The recorded steps.
        steady: Whether the result must depend on the seed only. Then the processes of candidates are left out.
    """
    sites = (entry["site"] for entry in trace)
    left_out = ("tell", "exit")
    return Counter(
        site for site in sites if site.split()[1] not in left_out and not (steady and site.startswith("candidate "))
    )
