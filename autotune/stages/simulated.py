"""What the stages do for a simulated device: sleep as long as a real one would take, and use no CPU.

Everything else of a stage (its files, log, leases and processes) is the same as for a real device. A stage takes the
time that `autotune simulate` would draw for it. A candidate has the same times whenever it is measured.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from autotune.device_settings import DeviceSettings
from autotune.errors import WorkerError
from autotune.planning.scenario import Duration, chance
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Kind, Trial
from autotune.storage.tuning_log import TuningLog

# The best time of a task falls from its first value towards this share of it, half of the way after 32 trials.
_FLOOR = 0.3
_HALF_AFTER = 32
_REPEATS = 3
_NOISE = 0.005
_WHOLE = 1.25
_LIBRARY_BYTES = 4096


def propose(stage: Stage, known: Collection[str]) -> list[Candidate]:
    """Return the first `stage.count` candidates of the task's endless sequence that are not known."""
    _sleep(seconds_of(stage, "search"))
    found: list[Candidate] = []
    number = 0
    while len(found) < stage.count:
        hash = _hash(stage, number)
        if hash not in known:
            found.append(Candidate(hash, {"simulated": number}, []))
        number += 1
    return found


def builder(stage: Stage, folder: Path) -> Callable[[Candidate], str]:
    """Return a function that writes a small file for a candidate and returns its name."""
    step = _Steps(stage, "build")

    def build(candidate: Candidate) -> str:
        step.take()
        _fail(_recorded(stage, candidate), "build")
        name = f"{candidate.hash}.so"
        (folder / name).write_bytes(candidate.hash.encode() * (_LIBRARY_BYTES // len(candidate.hash)))
        return name

    return build


def timer(stage: Stage) -> Callable[[Candidate], list[float]]:
    """Return a function that gives times of a candidate in microseconds: from the device's log of trials, or drawn."""
    step = _Steps(stage, "measure")

    def timed(candidate: Candidate) -> list[float]:
        step.take()
        trial = _recorded(stage, candidate)
        if trial is None:
            return _drawn_times(stage, candidate)
        _fail(trial, "measure")
        return list(trial.times_us)

    return timed


def whole_model_ms(stage: Stage, estimate_ms: float) -> list[float]:
    """Sleep as long as a confirmation takes; return the times of a model that takes a quarter more than its tasks."""
    _sleep(seconds_of(stage, "confirm"))
    return [estimate_ms * (_WHOLE + _NOISE * process) for process in range(_REPEATS)]


def learn(stage: Stage) -> int:
    """Sleep as long as training takes; return the number of trials there are to learn from."""
    _sleep(seconds_of(stage, "train"))
    return sum(len(stage.log(task).entries()) for task in stage.spec.tunable)


def device_of(stage: Stage) -> DeviceSettings:
    """Return the device of a stage, the first one for a stage that does not measure.

    What the job's target says takes precedence over the device's settings.
    """
    devices = stage.config.devices
    named = devices.get(stage.device.partition(":")[2])
    device = named or next(iter(devices.values()), DeviceSettings())
    return replace(device, **{key: value for key, value in stage.spec.target.items() if key != "kind"})


def seconds_of(stage: Stage, kind: Kind) -> float:
    """Return how long this stage takes with a full batch, in seconds."""
    device = device_of(stage)
    mean: dict[Kind, float] = {
        "search": device.search_s,
        "build": device.build_s,
        "measure": device.measure_s,
        "train": device.train_s,
        "confirm": device.measure_s,
    }
    position = chance(stage.spec.seed, stage.spec.id, stage.file.task, stage.file.round, kind)
    return Duration(mean[kind], device.spread).draw(position) / device.speed


class _Steps:
    """Spreads a stage's time evenly over its candidates, however long the work between them takes."""

    def __init__(self, stage: Stage, kind: Kind) -> None:
        self._step = seconds_of(stage, kind) / stage.spec.trials_per_round
        self._until = time.monotonic()

    def take(self) -> None:
        """Sleep until the next candidate is due."""
        self._until += self._step
        _sleep(self._until - time.monotonic())


def _sleep(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def _hash(stage: Stage, number: int) -> str:
    return hashlib.sha256(f"{stage.spec.seed}/{stage.task.hash}/{number}".encode()).hexdigest()[:16]


def _fail(trial: Trial | None, kind: Kind) -> None:
    """Fail as the recorded trial did, if it did so in this stage.

    Raises:
        WorkerError: The trial failed.
    """
    if trial is not None and trial.failure is not None and trial.failure.stage == kind:
        raise WorkerError(trial.failure.reason)


def _recorded(stage: Stage, candidate: Candidate) -> Trial | None:
    """Return the recorded trial that stands for a candidate. Trials repeat where there are too few of them."""
    device = device_of(stage)
    if not device.trials:
        return None
    log = TuningLog(stage.workspace.root / device.trials)
    entries = log.entries()
    return next(iter(log.trials_of([entries[_number(candidate) % len(entries)]])), None) if entries else None


def _number(candidate: Candidate) -> int:
    return int(candidate.trace["simulated"])


def _drawn_times(stage: Stage, candidate: Candidate) -> list[float]:
    """Draw times around a curve that falls with the trials. Most candidates are slower than it, some by far."""
    digits = hashlib.sha256(candidate.hash.encode()).digest()
    slower, *noise = (int.from_bytes(digits[at : at + 4], "big") / 2**32 for at in range(0, 4 + 4 * _REPEATS, 4))
    share = _FLOOR + (1 - _FLOOR) * _HALF_AFTER / (_HALF_AFTER + _number(candidate))
    middle = _first_us(stage) * share * (1 - 0.5 * math.log(1 - slower))
    return [middle * (1 + _NOISE * (value - 0.5)) for value in noise]


def _first_us(stage: Stage) -> float:
    """Return the time of a task's first candidate: between 100 and 1100 microseconds."""
    return 100 + int(hashlib.sha256(stage.task.hash.encode()).hexdigest()[:8], 16) % 1000
