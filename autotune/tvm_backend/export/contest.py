"""Time several runtimes of one model by turns, each alone in a process that is started for its turn.

So nothing of one runtime is in the way of another: no pool of threads that spins, no memory that is taken already. And
what is timed of ours is the library as its users load it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.errors import WorkerCrashed, WorkerError
from autotune.storage.formats import InputSpec
from autotune.tvm_backend.export import compare, timed_process

TIMINGS = 4  # in one process
_KEPT = 300


@dataclass(frozen=True)
class Contestant:
    """A runtime of `timed_process`, with the file that it runs. `values` are inputs that are constants."""

    runtime: str
    model: Path
    device: str = "cpu"
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Times:
    """Milliseconds of a run: for each process that was started, the median of its timings."""

    turns_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.turns_ms)

    @property
    def spread_ms(self) -> tuple[float, float]:
        """The fastest and the slowest process."""
        return min(self.turns_ms), max(self.turns_ms)


class Contest:
    """Runs contestants by name on the same inputs, with the same number of threads."""

    def __init__(
        self, contestants: Mapping[str, Contestant], inputs: Sequence[InputSpec], arrays: compare.Arrays, threads: int
    ) -> None:
        self._contestants = contestants
        self._arrays = {item.name: array for item, array in zip(inputs, arrays, strict=True)}
        self._threads = threads
        self._folder = tempfile.TemporaryDirectory(prefix="autotune-contest-")
        self._inputs = Path(self._folder.name) / "inputs.npz"

    def __enter__(self) -> Contest:
        np.savez(self._inputs, allow_pickle=False, **self._arrays)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def outputs(self, name: str) -> compare.Arrays:
        """What a contestant computes.

        Raises:
            WorkerError: its runtime refuses the model.
            WorkerCrashed: its process died.
        """
        path = Path(self._folder.name) / f"{name}.npz"
        self._run(name, 0, path)
        return timed_process.load(path)

    def play(self, timings: int) -> dict[str, Times]:
        """The times of all contestants, from at least so many timings, in processes of four timings each."""
        times = {name: Times() for name in self._contestants}
        for turn in range(max(1, -(-timings // TIMINGS))):
            names = list(times)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].turns_ms.append(statistics.median(self._run(name, min(timings, TIMINGS), None)))
        return times

    def _run(self, name: str, timings: int, outputs: Path | None) -> list[float]:
        contestant = self._contestants[name]
        request = {
            "runtime": contestant.runtime,
            "model": str(contestant.model),
            "inputs": str(self._inputs),
            "device": contestant.device,
            "values": dict(contestant.values),
            "threads": self._threads,
            "timings": timings,
            "outputs": str(outputs) if outputs else None,
        }
        return [float(value) for value in _answer(name, request, self._threads)["ms"]]


def _answer(name: str, request: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What a fresh process answers."""
    done = subprocess.run(
        [sys.executable, "-m", timed_process.__name__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
    )
    if not done.stdout.strip():
        said = done.stderr.strip().splitlines()[-1:]
        raise WorkerCrashed(f"the process that ran {name} died ({done.returncode}){': ' + said[0] if said else ''}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise WorkerError(f"{name} cannot run the model: {answer['error']}"[:_KEPT])
    return answer


def ratios(ours: Times, other: Times) -> list[float]:
    """Our time as a share of another's, turn by turn: what slowed the machine for a while slowed both."""
    return [mine / theirs for mine, theirs in zip(ours.turns_ms, other.turns_ms, strict=True)]
