"""Faults of the environment for `soak.py --faults`, and the processes of a daemon."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

HOOK = Path(__file__).resolve().parents[2] / "tests" / "faults" / "hook"


class Faults:
    """Faults of the environment: one at a time for some turns, and then none for some.

    Each kind comes once, in random order, before any comes again.
    """

    def __init__(self, root: Path, choose: random.Random) -> None:
        self.root = root
        self.choose = choose
        self.done: Counter[str] = Counter()
        self.kills: list[float] = []  # when a worker was killed, in epoch seconds
        self._settings = (root / "autotune.toml").read_text()
        self._turns = 3
        self._on = False
        self._next: list[str] = []

    def turn(self, daemon: int) -> None:
        self._turns -= 1
        if self._turns > 0:
            return
        self.end()
        self._on = not self._on
        self._turns = self.choose.randint(1, 3) if self._on else self.choose.randint(2, 5)
        if self._on:
            kinds = self._kinds()
            self._next = self._next or self.choose.sample(list(kinds), len(kinds))
            name = self._next.pop()
            self.done[name] += 1
            kinds[name](daemon)

    def end(self) -> None:
        """All is well again."""
        (self.root / "faults").unlink(missing_ok=True)
        if (self.root / "locks").is_dir():
            (self.root / "locks").chmod(0o1777)
        replace(self.root / "autotune.toml", self._settings)

    def _kinds(self) -> dict[str, Callable[[int], None]]:
        refused = {
            "full disk": f"ENOSPC write {self.root}/",
            "read-only disk": f"EROFS write,mkdir,rename {self.root}/",
            "disk that breaks": f"EIO write {self.root}/",
            "no processes": "EAGAIN fork,spawn",
            "clock set back": "clock -7200",
            "clock set forward": "clock 7200",
        }
        refusals = {name: partial(self._refuse, line) for name, line in refused.items()}
        return {
            **refusals,
            "file of a job": self._refuse_job,
            "unsafe lock folder": lambda _: (self.root / "locks").chmod(0o777),
            "nonsense in the settings": lambda _: replace(self.root / "autotune.toml", "[nonsense]\nx = 1\n"),
            "killed worker": self._kill_worker,
        }

    def _refuse(self, line: str, _: int) -> None:
        replace(self.root / "faults", line + "\n")

    def _refuse_job(self, daemon: int) -> None:
        jobs = sorted((self.root / "jobs").glob("[0-9]*"))
        if jobs:
            call = self.choose.choice(["EACCES read", "EIO write", "ESTALE stat", "EACCES open"])
            self._refuse(f"{call} {self.choose.choice(jobs)}/", daemon)

    def _kill_worker(self, daemon: int) -> None:
        pids = [pid for pid in processes() if parent_of(pid) == daemon and role_of(pid)]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.choose.choice(pids), signal.SIGKILL)
                self.kills.append(time.time())


def replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def role_of(pid: int) -> str:
    """`llvm worker`, say; empty for another child of the daemon."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return f"{words[words.index('--kind') + 1]} worker" if "autotune.workers.worker" in words else ""
