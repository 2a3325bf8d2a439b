"""What the stages do for a simulated device: take the time that it would take, and no CPU.

Everything else of a stage, its files, its log, its leases, its processes, is what it is for a real device. A stage
takes as long as `autotune simulate` would have it take, and a candidate answers the same whenever it is asked.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import WorkerError
from autotune.planning.scenario import Duration, chance
from autotune.settings import DeviceSettings
from autotune.stages.stage import Stage
from autotune.storage.formats import Candidate, Kind, Trial
from autotune.storage.tuning_log import TuningLog

# A task gains most from its first trials: its best time falls towards a third, half of the way after so many.
_FLOOR = 0.3
_HALF_AFTER = 32
_REPEATS = 3
_NOISE = 0.005
_LIBRARY_BYTES = 4096


def propose(stage: Stage, trials: Sequence[Trial], pending: Collection[str]) -> list[Candidate]:
    """The first `stage.count` candidates of the task's endless sequence that are neither known nor pending."""
    _take(seconds_of(stage, "search"))
    known = {trial.hash for trial in trials} | set(pending)
    found: list[Candidate] = []
    number = 0
    while len(found) < stage.count:
        hash = _hash(stage, number)
        if hash not in known:
            found.append(Candidate(hash, {"simulated": number}, []))
        number += 1
    return found


def builder(stage: Stage, folder: Path) -> Callable[[Candidate], str]:
    """Writes a small file for each candidate."""
    step = _Steps(stage, "build")

    def build(candidate: Candidate) -> str:
        step.take()
        _fail(_recorded(stage, candidate), "build")
        name = f"{candidate.hash}.so"
        (folder / name).write_bytes(candidate.hash.encode() * (_LIBRARY_BYTES // len(candidate.hash)))
        return name

    return build


def timer(stage: Stage) -> Callable[[Candidate], list[float]]:
    """Answers microseconds: recorded ones, where the device has a log of them, or drawn ones."""
    step = _Steps(stage, "measure")

    def timed(candidate: Candidate) -> list[float]:
        step.take()
        trial = _recorded(stage, candidate)
        if trial is None:
            return _drawn_times(stage, candidate)
        _fail(trial, "measure")
        return list(trial.times_us)

    return timed


def learn(stage: Stage) -> int:
    """Learns nothing; returns the number of trials there are to learn from."""
    _take(seconds_of(stage, "train"))
    return sum(len(stage.log(task).trials()) for task in stage.spec.tunable)


def device_of(stage: Stage) -> DeviceSettings:
    """The device of a stage, with what the job's target says instead; before a measurement it is the first."""
    devices = stage.config.devices
    named = devices.get(stage.device.partition(":")[2])
    device = named or next(iter(devices.values()), DeviceSettings())
    return replace(device, **{key: value for key, value in stage.spec.target.items() if key != "kind"})


def seconds_of(stage: Stage, kind: Kind) -> float:
    """How long this stage takes, with a full batch where it goes by candidate."""
    device = device_of(stage)
    mean = {"search": device.search_s, "build": device.build_s, "measure": device.measure_s, "train": device.train_s}
    luck = chance(stage.spec.seed, stage.spec.id, stage.file.task, stage.file.round, kind)
    return Duration(mean[kind], device.spread).draw(luck) / device.speed


class _Steps:
    """Equal shares of a stage's time, one for each candidate, however long the work around them takes."""

    def __init__(self, stage: Stage, kind: Kind) -> None:
        self._step = seconds_of(stage, kind) / stage.spec.trials_per_round
        self._until = time.monotonic()

    def take(self) -> None:
        self._until += self._step
        _take(self._until - time.monotonic())


def _take(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def _hash(stage: Stage, number: int) -> str:
    return hashlib.sha256(f"{stage.spec.seed}/{stage.task.hash}/{number}".encode()).hexdigest()[:16]


def _fail(trial: Trial | None, kind: Kind) -> None:
    """What failed when it was recorded fails again, in the same stage."""
    if trial is not None and trial.failure is not None and trial.failure.stage == kind:
        raise WorkerError(trial.failure.reason)


def _recorded(stage: Stage, candidate: Candidate) -> Trial | None:
    """The trial that answers for a candidate; the recorded ones over again when there are too few."""
    device = device_of(stage)
    if not device.trials:
        return None
    trials = TuningLog(stage.workspace.root / device.trials).trials()
    return trials[_number(candidate) % len(trials)] if trials else None


def _number(candidate: Candidate) -> int:
    return int(candidate.trace["simulated"])


def _drawn_times(stage: Stage, candidate: Candidate) -> list[float]:
    """Times around a curve that falls with the trials; most candidates are slower than it, some by far."""
    digits = hashlib.sha256(candidate.hash.encode()).digest()
    slower, *noise = (int.from_bytes(digits[at : at + 4], "big") / 2**32 for at in range(0, 4 + 4 * _REPEATS, 4))
    share = _FLOOR + (1 - _FLOOR) * _HALF_AFTER / (_HALF_AFTER + _number(candidate))
    middle = _first_us(stage) * share * (1 - 0.5 * math.log(1 - slower))
    return [middle * (1 + _NOISE * (value - 0.5)) for value in noise]


def _first_us(stage: Stage) -> float:
    """What a first guess at the task would take: between 100 and 1100 microseconds."""
    return 100 + int(hashlib.sha256(stage.task.hash.encode()).hexdigest()[:8], 16) % 1000
