"""Every file format: frozen dataclasses, and how they become JSON and come back.

Each file names its format and version. `read` accepts the current version and every older one; a newer one is an
error that says so. Points in time are epoch seconds; durations are seconds.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from autotune.errors import DamagedFile
from autotune.reasons import Reason
from autotune.storage.atomic import publish_json, read_versioned_json

Kind = Literal["search", "build", "measure", "train"]
KINDS: tuple[Kind, ...] = ("search", "build", "measure", "train")
Wanted = Literal["run", "hold", "cancel"]
State = Literal["waiting", "running", "held", "cancelled", "done", "failed"]
SIMULATED = "simulated"  # the kind of target, and of device, that does not exist
ENDED: tuple[State, ...] = ("cancelled", "done", "failed")

T = TypeVar("T")


@dataclass(frozen=True)
class InputSpec:
    """One input of a model, with every dimension known."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TaskSpec:
    """One task of a job. `tunable` is false where the design space holds a single schedule."""

    name: str
    hash: str
    weight: int
    shape: str
    gflop: float
    tunable: bool


@dataclass(frozen=True)
class JobSpec:
    """What was asked for. Written once, by `submit`."""

    FORMAT = ("autotune-job", 1)

    id: int
    name: str
    model: str
    target: dict[str, Any]
    target_key: str
    inputs: tuple[InputSpec, ...]
    tasks: tuple[TaskSpec, ...]
    trials: int
    trials_per_round: int
    priority: int
    seed: int
    fresh: bool
    known_at_submit: tuple[int, ...]
    submitted_at: float
    deadline: float | None = None
    strategy: str = "evolutionary"
    sampler: str = "greedy"
    model_size: int = 0
    model_crc32: int = 0
    winograd: bool = False

    @property
    def tunable(self) -> tuple[int, ...]:
        return tuple(index for index, task in enumerate(self.tasks) if task.tunable)

    @property
    def target_kind(self) -> str:
        return str(self.target["kind"])


@dataclass(frozen=True)
class Control:
    """What the user wants of a job. Written by the commands only, under the queue lock.

    `reason` says why a job is held that the user did not hold.
    """

    FORMAT = ("autotune-control", 2)

    wanted: Wanted = "run"
    retries: int = 0
    reason: Reason | None = None


@dataclass(frozen=True)
class TaskProgress:
    """How far one task is. `best_us` is the median time of the best candidate, in microseconds."""

    trials: int = 0
    best_us: float | None = None
    set_aside: str = ""


@dataclass(frozen=True)
class JobState:
    """How far a job is. Written by the daemon only; everything in it follows from logs and stage files."""

    FORMAT = ("autotune-state", 2)

    state: State = "waiting"
    reason: Reason | None = None
    trials_done: int = 0
    tasks: tuple[TaskProgress, ...] = ()
    finished_at: float | None = None
    retries_seen: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a candidate is no library or has no time: the stage, a word for statistics, a line for people."""

    stage: Kind
    kind: Literal["error", "crash", "timeout", "memory", "wrong"]
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A proposed configuration on its way to becoming a trial.

    `hash` is the structural hash of the scheduled program; `trace` and `args` are TVM's JSON forms of the
    schedule and of the arguments; `library` is the file name of the build, with its size and CRC-32.
    """

    hash: str
    trace: Any
    args: Any
    library: str = ""
    size: int = 0
    crc32: int = 0
    failure: Failure | None = None


@dataclass(frozen=True)
class StageFile:
    """What the next step of one round of one task is. One file per round, replaced at every step."""

    FORMAT = ("autotune-stage", 1)

    task: int
    round: int
    kind: Kind
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One line of a tuning log. `times_us` holds every repeat; a failed trial has none, and a failure."""

    hash: str
    trace: Any
    args: Any
    times_us: tuple[float, ...]
    failure: Failure | None
    job: str
    round: int
    at: float

    @property
    def best_us(self) -> float | None:
        """The median of the repeats, in microseconds; None for a failed trial."""
        if not self.times_us:
            return None
        ordered = sorted(self.times_us)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Quarantined:
    """One line of the quarantine: a candidate that no job of this workspace proposes, builds or runs again."""

    hash: str
    target: dict[str, Any]
    task: str
    failure: Failure
    job: str
    at: float


@dataclass(frozen=True)
class InProgress:
    """The candidate that the `attempt`-th repetition of a stage works on, and how often the stage died at it before.

    `pardoned` attempts are explained: they died at candidates that have been found out since.
    """

    FORMAT = ("autotune-in-progress", 1)

    hash: str
    attempt: int
    deaths: int = 0
    pardoned: int = 0


@dataclass(frozen=True)
class RunningStage:
    """A stage that the daemon has started, for `status`."""

    job: int
    task: int
    round: int
    kind: Kind
    cpus: tuple[int, ...]
    started_at: float
    device: str = ""


@dataclass(frozen=True)
class DaemonInfo:
    """Who the daemon of a workspace is and what it is doing.

    Attributes:
        waits: Why jobs wait, by job id.
        cpus: The CPUs it may use.
        devices: The devices it may use.
        ends: When the jobs are expected to end, in epoch seconds, by job id.
        trouble: Why it starts nothing for now.
    """

    FORMAT = ("autotune-daemon", 2)

    identity: dict[str, Any]
    started_at: float
    policy: str
    stopping: bool = False
    running: tuple[RunningStage, ...] = ()
    waits: dict[str, Reason] = field(default_factory=dict)
    window: str = ""
    cpus: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    ends: dict[str, float] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class EstimatesFile:
    """How long stages took, by kind and device and task: rows of `planning.estimates.Estimates.to_json`."""

    FORMAT = ("autotune-estimates", 1)

    means: tuple[Any, ...] = ()


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain JSON values. A reason is stored without the parameters that it does not have."""
    return {
        field.name: _to_json(part)
        for field in fields(value)
        if (part := getattr(value, field.name)) != field.default or not isinstance(value, Reason)
    }


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, (list, tuple)):
        return [_to_json(part) for part in value]
    return {key: _to_json(part) for key, part in value.items()} if isinstance(value, dict) else value


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """Rebuild a dataclass; unknown keys are ignored, so that a field can be added without a new version.

    Raises:
        KeyError, TypeError, ValueError: the data is not what the dataclass says.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r} is no object")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    known = {f.name for f in fields(kind) if f.name in data}  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], data[name]) for name in known})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    return typing.get_origin(hint), typing.get_args(hint), is_dataclass(hint)


def _value(hint: Any, value: Any) -> Any:
    origin, args, nested = _taken_apart(hint)
    if nested:
        return from_json(hint, value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{value!r} is no list")
        return tuple(_value(args[0], item) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _value(args[1], item) for key, item in value.items()}
    if origin is Literal:
        return _choice(args, value)
    if type(None) in args:
        return None if value is None else _value(args[0], value)
    return _plain(origin or hint, value)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}")
    return value


def _plain(hint: Any, value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is not Any and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value


def write(path: Path, value: Any) -> None:
    """Publish a dataclass that has a FORMAT.

    Raises:
        DiskProblem: the file could not be written; an older one is still there, whole.
    """
    name, version = value.FORMAT
    publish_json(path, name, version, to_json(value))


def read(kind: type[T], path: Path) -> T:
    """Read what `write` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFile, NewerFormat: it is there and cannot be used.
    """
    name, version = kind.FORMAT  # type: ignore[attr-defined]
    found, data = read_versioned_json(path, name, version)
    try:
        return from_json(kind, _UPGRADES[kind](data) if found < version else data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"{path} is not a valid {name} file: {error}") from error


def _upgrade_reason(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a control or state file of version 1, whose reason is a sentence."""
    return {**data, "reason": _reason_of(data["reason"])} if "reason" in data else data


def _upgrade_waits(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a daemon file of version 1, whose reasons to wait are sentences."""
    waits = data.get("waits")
    if not isinstance(waits, dict):
        return data
    return {**data, "waits": {job: _reason_of(said) for job, said in waits.items() if said}}


def _reason_of(said: Any) -> Any:
    return ({"kind": "unspecified", "wording": said} if said else None) if isinstance(said, str) else said


_UPGRADES: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Control: _upgrade_reason,
    JobState: _upgrade_reason,
    DaemonInfo: _upgrade_waits,
}
