"""One round: a fresh workspace, a queue, processes that die, and a judgement of what is left.

After every death the daemon is started again, and every command again whose process died. In the end the queue must
be drained, and this must hold: every acknowledged submit is there, no logged trial is lost or there twice, nothing runs
any more, `check` finds nothing wrong, the next daemon deletes the leftovers, and, where the outcome depends on the seed
alone, it is that of an undisturbed round.
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

from autotune.commands.check import check
from autotune.commands.selftest import points
from autotune.commands.selftest.plan import Kill
from autotune.commands.selftest.subject import Subject
from autotune.daemon.leftovers import temporaries
from autotune.daemon.worker_processes import parent, workers
from autotune.storage.atomic import LEFTOVER_AGE_S
from autotune.storage.job_files import read_state
from autotune.storage.paths import Workspace
from autotune.storage.record_log import RecordLog
from autotune.storage.tuning_log import FORMAT

HOOK = Path(__file__).parent / "hook"
_GONE_WITHIN_S = 10.0
_TRIES = 200

Trials = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Outcome:
    """What a round came to. `deaths` are sites, or who died at a random time; without `problems`, all held."""

    deaths: list[str]
    problems: list[str]
    jobs: dict[str, Any]
    trials: Trials


@dataclass
class Round:
    """A round in `folder`, which must not exist. `moments` are seconds after which somebody dies, one after another.

    `hook` is the folder put on the path of all processes; a test gives another one, to break the code in them.
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

    def run(self) -> Outcome:
        """Play the round; never raises for what the processes do."""
        self._random = random.Random(self.seed)
        self._left = list(self.moments)
        self._prepare()
        self._submit()
        for verb in ("hold", "release"):
            self._command(verb, "1")
        self._drain()
        jobs = self._jobs()
        self._judge(jobs)
        if not self._problems:  # otherwise somebody will want to look
            self._command("clean", "--finished")
            self._problems += check(self.workspace)
        return Outcome(self._deaths(), self._problems, jobs, self._trials)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.folder / "workspace")

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def _prepare(self) -> None:
        for folder in (self.workspace.root, self.orders):
            folder.mkdir(parents=True)
        locks = self.folder / "locks"
        self.workspace.config.write_text(self.subject.settings.replace("{locks}", str(locks)))
        orders = {
            "roots": [str(self.workspace.root), str(locks)],
            "daemon_info": str(self.workspace.daemon_info),
            "record": self.record,
            "kills": [kill.__dict__ for kill in self.kills],
        }
        (self.orders / points.ORDERS).write_text(json.dumps(orders))

    def _start(self, words: Sequence[str], armed: bool = True) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(self.hook), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, points.VARIABLE: str(self.orders)}
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
        """Submit each job until it is acknowledged, or turns out to be there without its acknowledgement."""
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
                self._problems.append(f"job {name} was not taken in {_TRIES} tries")

    def _command(self, *words: str) -> None:
        """Do a command until its process lives to its end."""
        for _ in range(_TRIES):
            process = self._start(["autotune", "--workspace", str(self.workspace.root), *words])
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                return
        self._problems.append(f"{words[0]} was killed {_TRIES} times")

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
        """Run a daemon to its end, which somebody may hasten; None when it had to be ended."""
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
            self._kill_somebody(daemon)
        self._settled()
        return daemon.returncode

    def _kill_somebody(self, daemon: subprocess.Popen[str]) -> None:
        everybody = sorted(self._victims())
        if not everybody or self._random.random() < 0.3:
            victim, who = daemon.pid, "daemon"
        else:
            victim, who = self._random.choice(everybody), "worker or stage"
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self._random_deaths.append(f"{who}, at a random time")

    def _victims(self) -> set[int]:
        """Workers and what they have forked, less the processes of candidates where the outcome must be steady:
        whoever kills one of those makes a failed trial of its candidate, and is right to."""
        everybody = workers(self.workspace)
        if not self.subject.steady:
            return everybody
        return {pid for pid in everybody if parent(pid) not in everybody or parent(parent(pid)) not in everybody}

    def _settled(self) -> None:
        """After a daemon's end: everyone goes with it, and what was logged is there, once."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while workers(self.workspace) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left := workers(self.workspace):
            self._problems.append(f"processes {sorted(left)} outlived their daemon by {_GONE_WITHIN_S:g} s")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        before, self._trials = self._trials, self._logged()
        self._problems += [f"{task}: trial {hash} was lost" for task, hash in before - self._trials]

    def _logged(self) -> Trials:
        logs = self.workspace.logs.glob("tuning/*/*.jsonl")
        return Counter((log.stem, str(record["hash"])) for log in logs for record in RecordLog(log, *FORMAT).read())

    def _jobs(self) -> dict[str, Any]:
        """How each job ended, by name: a submit that was killed may have used up an id."""
        found = {}
        for job in self.workspace.job_list():
            state = read_state(job)
            best = [(task.trials, task.best_us) for task in state.tasks]
            found[job.folder.name.split("-", 1)[1]] = [state.state, state.reason, state.trials_done, best]
        return found

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
        found = list(self._random_deaths)
        with contextlib.suppress(FileNotFoundError):
            lines = (self.orders / points.DEATHS).read_text().splitlines()
            found += [json.loads(line)["site"] for line in lines]
        return found


def differences(undisturbed: Outcome, other: Outcome) -> list[str]:
    """How the outcome of a round differs from that of an undisturbed one of the same seed."""
    found = [f"trial {hash} of {task} is missing" for task, hash in undisturbed.trials - other.trials]
    found += [f"trial {hash} of {task} is one too many" for task, hash in other.trials - undisturbed.trials]
    if undisturbed.jobs != other.jobs:
        found.append(f"the jobs ended as {other.jobs}, undisturbed as {undisturbed.jobs}")
    return found


def read_trace(round: Round) -> list[dict[str, Any]]:
    """The durable steps of a recorded round, in order."""
    return [json.loads(line) for line in (round.orders / points.TRACE).read_text().splitlines()]


def sites_of(trace: list[dict[str, Any]], steady: bool) -> Counter[str]:
    """How often each site at which a process can die was come to.

    Where the outcome must be steady, no candidate's process is killed: that makes a failed trial, as it should.
    """
    sites = (entry["site"] for entry in trace)
    left_out = ("tell", "exit")
    return Counter(
        site for site in sites if site.split()[1] not in left_out and not (steady and site.startswith("candidate "))
    )
