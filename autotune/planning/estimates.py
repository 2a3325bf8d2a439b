"""How long stages take: robust running means of the stages that ended, and priors where none has.

The work that is left of a job is a sum of such times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.planning.view import Kind

# Seconds per candidate of a build or measurement, and per stage of a search or training, about as measured for
# ResNet-18 on two cores. The first stage that ends replaces a prior.
_PRIORS: dict[Kind, float] = {
    "search": 8.0,
    "build": 0.9,
    "measure": 0.3,
    "train": 1.0,
    "compile": 15.0,
    "confirm": 15.0,
}
_PER_CANDIDATE = ("build", "measure")
# The least weight of the newest value, so that a mean follows a machine that has become slower.
_MIN_SHARE = 0.1
# A value further from the mean than this many mean deviations counts as that far away.
_CLIP = 3.0
# How many values of all jobs a mean of one job or task is blended with.
_SHRINKAGE = 1.0
# How many jobs and tasks to keep per kind of stage and device. Those used last are kept.
_MAX_SUBJECTS = 4000


@dataclass(slots=True)
class RunningMean:
    """A running mean that a single outlier moves little."""

    value: float = 0.0
    deviation: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take in a value."""
        self.count += 1
        if self.count == 1:
            self.value = value
            self.deviation = value / 2
            return
        share = max(1 / self.count, _MIN_SHARE)
        off = value - self.value
        reach = _CLIP * self.deviation
        self.value += share * max(-reach, min(reach, off))
        # The deviation follows outliers too, so that the mean follows a lasting change after a few values.
        self.deviation += share * (min(abs(off), 2 * max(reach, abs(off) / 4)) - self.deviation)


@dataclass
class _StageMeans:
    """The means of one kind of stage on one kind of device: over all jobs, and by the name of a job or task."""

    general: RunningMean = field(default_factory=RunningMean)
    subjects: dict[str, RunningMean] = field(default_factory=dict)


@dataclass
class Estimates:
    """Expected lengths of stages, by the kind of stage, the kind of device, and the names of the job and the task.

    An estimate blends what is known of the task, of the job and of all jobs on the kind of device. If nothing is
    known, it is a prior.
    """

    known: dict[tuple[str, str], _StageMeans] = field(default_factory=dict)

    def add(self, kind: Kind, device: str, subjects: tuple[str, ...], count: int, seconds: float) -> None:
        """Take in a stage that ended.

        Args:
            device: The kind of device that its job measures on.
            subjects: The names of its job and its task.
            count: The size of its batch.
            seconds: How long it took.
        """
        value = max(0.0, seconds) / _units(kind, count)
        means = self.known.setdefault((kind, device), _StageMeans())
        means.general.add(value)
        for subject in subjects:
            mean = means.subjects.pop(subject, None) or RunningMean()
            mean.add(value)
            means.subjects[subject] = mean  # to the end: the order is that of the last use
        while len(means.subjects) > _MAX_SUBJECTS:
            del means.subjects[next(iter(means.subjects))]

    def forget(self, subject: str) -> None:
        """Drop what is known of a job or task."""
        for means in self.known.values():
            means.subjects.pop(subject, None)

    def seconds(self, kind: Kind, device: str, subjects: tuple[str, ...], count: int) -> float:
        """Return how many seconds a stage is expected to take.

        Args:
            device: The kind of device that its job measures on.
            subjects: The names to go by, the most specific last: the job, the task.
            count: The size of its batch.
        """
        means = self.known.get((kind, device))
        if means is None:
            return _PRIORS[kind] * _units(kind, count)
        value = means.general.value
        for subject in subjects:
            own = means.subjects.get(subject)
            if own is not None:
                value = (own.count * own.value + _SHRINKAGE * value) / (own.count + _SHRINKAGE)
        return value * _units(kind, count)

    def lasting(self, most: int) -> Estimates:
        """Return what is worth keeping when all jobs have ended: the means over all jobs and those of tasks.

        The names of tasks contain a slash, those of jobs do not.

        Args:
            most: How many tasks to keep per kind of stage and device. Those used last are kept.
        """
        lasting = Estimates()
        for key, means in self.known.items():
            tasks = [subject for subject in means.subjects if "/" in subject][-most:]
            lasting.known[key] = _StageMeans(means.general, {task: means.subjects[task] for task in tasks})
        return lasting

    def to_json(self) -> dict[str, Any]:
        """Return the means as JSON values, those used last at the end."""
        rows: list[list[Any]] = []
        for (kind, device), means in sorted(self.known.items()):
            rows.append([kind, device, "", *_row(means.general)])
            rows += [[kind, device, subject, *_row(mean)] for subject, mean in means.subjects.items()]
        return {"means": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimates:
        """Return the estimates that `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: The data has another form.
        """
        estimates = cls()
        for kind, device, subject, value, deviation, count in data["means"]:
            means = estimates.known.setdefault((str(kind), str(device)), _StageMeans())
            mean = RunningMean(float(value), float(deviation), int(count))
            if not (0 <= mean.value < math.inf and 0 <= mean.deviation < math.inf and mean.count > 0):
                raise ValueError(f"{mean} is no running mean")
            if subject:
                means.subjects[str(subject)] = mean
            else:
                means.general = mean
        return estimates


@dataclass(frozen=True)
class RemainingWork:
    """The work that is left of a job, in milliseconds.

    The numbers are whole, because sums of them are updated by differences and must not drift.

    Attributes:
        cpu_ms: CPU time of all stages that are left.
        device_ms: Time on the device of all measurements that are left.
        ready_ms: The part of `device_ms` whose batches are built.
        begun_ms: The part of `device_ms` that belongs to rounds which have begun.
        chain_ms: The length of the longest chain of stages that must run one after another. The job ends no sooner,
            even with the machine to itself.
    """

    cpu_ms: int = 0
    device_ms: int = 0
    ready_ms: int = 0
    begun_ms: int = 0
    chain_ms: int = 0


def _row(mean: RunningMean) -> tuple[float, float, int]:
    return mean.value, mean.deviation, mean.count


def _units(kind: Kind, count: int) -> int:
    """Return the number by which the length of a stage is divided to compare it with others."""
    return max(1, count) if kind in _PER_CANDIDATE else 1
