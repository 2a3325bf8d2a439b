"""Define the queues whose processes are killed: what is submitted, and with which settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SIMULATED = """
[machine]
lock_dir = "{locks}"
simulated_cpus = 3
[devices.one]
kind = "simulated"
search_s = {second}
build_s = {second}
measure_s = {second}
train_s = {second}
[daemon]
policy = "{policy}"
poll_s = 0.05
attempts = 1000
stop_grace_s = 5.0
"""
_REAL = """
[machine]
lock_dir = "{locks}"
[measure]
min_repeat_ms = 1
[export]
repeats = 2
contenders = 1
[daemon]
poll_s = 0.05
attempts = 1000
"""


@dataclass(frozen=True)
class Subject:
    """A queue whose processes are killed.

    Attributes:
        settings: The content of `autotune.toml`.
        submissions: Returns for a workspace the name of each job, and the words after `python -m` that submit it.
        steady: Whether the result depends on the seed only.
        limit_s: How many seconds the queue may take.
        exported: Whether each job is exported when the queue is drained.
        shared: Whether trials travel to another workspace and back then.
    """

    settings: str
    submissions: Callable[[Path], list[tuple[str, list[str]]]]
    steady: bool
    limit_s: float
    exported: bool = False
    shared: bool = False


def simulated(seed: int, policy: str, second: float = 0.02) -> Subject:
    """Return a queue of three jobs for a simulated device. The second and the third share a task and its log.

    Args:
        seed: The seed of the jobs.
        policy: The scheduling policy.
        second: How long a stage takes, in seconds.
    """
    queue = {"one": ["conv", "dense"], "two": ["pool", "shared"], "three": ["shared", "norm"]}

    def submissions(root: Path) -> list[tuple[str, list[str]]]:
        words = ["kills.enqueue", "--workspace", str(root)]
        return [(name, [*words, name, str(seed), "16", *tasks]) for name, tasks in queue.items()]

    settings = _SIMULATED.replace("{second}", str(second)).replace("{policy}", policy)
    return Subject(settings, submissions, steady=policy == "sequential", limit_s=120.0, shared=True)


def real(model: Path, jobs: int = 1, trials: int = 8) -> Subject:
    """Return a queue that imports, tunes and exports a model for the CPU of this machine, under several names.

    Args:
        model: The ONNX file.
        jobs: How many jobs there are.
        trials: How many trials the first job may spend. Each further job may spend as many more.
    """

    def submissions(root: Path) -> list[tuple[str, list[str]]]:
        words = ["autotune", "--workspace", str(root), "submit", str(model), "-q", "--trials-per-round", "4"]
        names = [f"real{number}" for number in range(1, jobs + 1)]
        return [(name, [*words, "--name", name, "--trials", str(trials * (at + 1))]) for at, name in enumerate(names)]

    return Subject(_REAL, submissions, steady=False, limit_s=600.0, exported=True)
