"""How long stages take: robust running means, learnt from stages that ended, with priors for what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.planning.view import Kind

# Seconds of a stage of one candidate (build, measure) or of the whole stage (search, train): of the order that
# ResNet-18 on two cores showed. A guess is wrong once: the first stage that ends replaces it.
_PRIORS: dict[Kind, float] = {"search": 8.0, "build": 0.9, "measure": 0.3, "train": 1.0}
_PER_CANDIDATE = ("build", "measure")
# The newest value counts for this much at least, so that a machine that became slower is noticed.
_LEAST_SHARE = 0.1
# One outlier (a build that hit its time limit) moves a mean by no more than this many mean deviations.
_CLIP = 3.0
# How many stages of a task outweigh what is known of all others.
_SHRINKAGE = 1.0
# Jobs and tasks kept of each kind of stage and device; of more, those used last.
_MOST_SUBJECTS = 4000


@dataclass(slots=True)
class Mean:
    """A running mean that one wild value cannot drag far."""

    value: float = 0.0
    deviation: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count == 1:
            self.value, self.deviation = value, value / 2
            return
        share = max(1 / self.count, _LEAST_SHARE)
        off = value - self.value
        reach = _CLIP * self.deviation
        self.value += share * max(-reach, min(reach, off))
        # The deviation follows every value, so that a lasting change is believed after a few.
        self.deviation += share * (min(abs(off), 2 * max(reach, abs(off) / 4)) - self.deviation)


@dataclass
class _Known:
    """What is known of one kind of stage on one kind of device: over all, and by the name of a job or task."""

    general: Mean = field(default_factory=Mean)
    subjects: dict[str, Mean] = field(default_factory=dict)


@dataclass
class Estimates:
    """Seconds that a stage will take, by its kind, the kind of device, and its job's or task's name.

    The most particular that is known is blended with the more general: task, job, all of this device, prior.
    """

    known: dict[tuple[str, str], _Known] = field(default_factory=dict)

    def add(self, kind: Kind, device: str, subjects: tuple[str, ...], count: int, seconds: float) -> None:
        """Learn from a stage that ended. `subjects` are names of its job and of its task."""
        value = max(0.0, seconds) / _units(kind, count)
        known = self.known.setdefault((kind, device), _Known())
        known.general.add(value)
        for subject in subjects:
            mean = known.subjects.pop(subject, None) or Mean()
            mean.add(value)
            known.subjects[subject] = mean  # at the end: the order is that of the last use
        while len(known.subjects) > _MOST_SUBJECTS:
            del known.subjects[next(iter(known.subjects))]

    def forget(self, subject: str) -> None:
        """Drop what is known of a job or task."""
        for known in self.known.values():
            known.subjects.pop(subject, None)

    def seconds(self, kind: Kind, device: str, subjects: tuple[str, ...], count: int) -> float:
        """What a stage is expected to take. The last of the `subjects` is the most particular."""
        known = self.known.get((kind, device))
        if known is None:
            return _PRIORS[kind] * _units(kind, count)
        value = known.general.value
        for subject in subjects:
            own = known.subjects.get(subject)
            if own is not None:
                value = (own.count * own.value + _SHRINKAGE * value) / (own.count + _SHRINKAGE)
        return value * _units(kind, count)

    def lasting(self, most: int) -> Estimates:
        """What outlives the jobs: of each kind and device what is known of all, and of the tasks used last.

        The names of tasks have a slash in them, those of jobs have none.
        """
        found = Estimates()
        for key, known in self.known.items():
            tasks = [subject for subject in known.subjects if "/" in subject][-most:]
            found.known[key] = _Known(known.general, {task: known.subjects[task] for task in tasks})
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; what was used last comes last."""
        rows: list[list[Any]] = []
        for (kind, device), known in sorted(self.known.items()):
            rows.append([kind, device, "", *_row(known.general)])
            rows += [[kind, device, subject, *_row(mean)] for subject, mean in known.subjects.items()]
        return {"means": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimates:
        """Back from JSON values.

        Raises:
            KeyError, TypeError, ValueError: the data is not what `to_json` gives.
        """
        found = cls()
        for kind, device, subject, value, deviation, count in data["means"]:
            known = found.known.setdefault((str(kind), str(device)), _Known())
            mean = Mean(float(value), float(deviation), int(count))
            if not (0 <= mean.value < math.inf and 0 <= mean.deviation < math.inf and mean.count > 0):
                raise ValueError(f"{mean} is no running mean")
            if subject:
                known.subjects[str(subject)] = mean
            else:
                known.general = mean
        return found


def _row(mean: Mean) -> tuple[float, float, int]:
    return mean.value, mean.deviation, mean.count


def _units(kind: Kind, count: int) -> int:
    return max(1, count) if kind in _PER_CANDIDATE else 1
