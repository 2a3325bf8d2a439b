"""The file formats: frozen dataclasses, and their conversion to and from JSON.

Each file names its format and version. A version that this autotune does not know is an error.
Points in time are seconds since the epoch; durations are seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from autotune import schema
from autotune.errors import DamagedFile, InvalidData
from autotune.metric import Metric
from autotune.options import InputSpec, JobOptions, Precision
from autotune.reasons import Reason, used_parameters
from autotune.schema import moment, number, positive, whole_number
from autotune.storage.atomic import publish_json, read_versioned_json
from autotune.storage.model_digest import ModelDigest
from autotune.storage.quantisation import Quantisation

Kind = Literal["search", "build", "measure", "train", "compile", "confirm"]
KINDS: tuple[Kind, ...] = ("search", "build", "measure", "train", "compile", "confirm")
Wanted = Literal["run", "hold", "cancel"]
State = Literal["waiting", "running", "held", "cancelled", "done", "failed"]
SIMULATED = "simulated"  # the kind of target and device for tests, which does not exist
COMMAND = "command"  # the kind of target of a job whose candidates are measured by a command of the user's
ENDED: tuple[State, ...] = ("cancelled", "done", "failed")

T = TypeVar("T")


@dataclass(frozen=True)
class ShapeBinding:
    """One of the sets of shapes that the user asked for: of inputs, and of open dimensions by name."""

    name: str = "main"
    inputs: tuple[InputSpec, ...] = ()
    dims: dict[str, int] = field(default_factory=dict)


# What decides whether a library is right: the runtime of the model; where that is far from itself, the same weights in
# float32, or what the model chooses by; or nothing, on random inputs.
VerifiedBy = Literal["runtime", "float32", "choices", "nothing"]
INPUTS_VERSION = 2  # of random inputs, as new jobs draw them; 1 drew noise in place of pictures and sounds
MAX_OWN_ERROR = 0.05  # of a model whose outputs can be verified: another runtime may be as far from its own


@dataclass(frozen=True)
class Entry:
    """One set of shapes of a job's model, and the function of the exported library for inputs of these shapes.

    `weights` says how often the model runs each task of the job at these shapes.
    """

    name: str
    inputs: tuple[InputSpec, ...]
    weights: tuple[int, ...]
    asked: ShapeBinding = field(default_factory=ShapeBinding)


@dataclass(frozen=True)
class TaskSpec:
    """One task of a job. `tunable` is false if its search space holds a single schedule.

    `weight` is the sum over the sets of shapes of the job. `constants` are the positions of the arguments of its kernel
    that are constants of the model.
    """

    name: str
    hash: str
    weight: Annotated[int, whole_number(0)]
    shape: str
    gflop: float
    tunable: bool
    constants: tuple[Annotated[int, whole_number(0)], ...] = ()

    @property
    def is_tuned(self) -> bool:
        """Whether it gets trials. With a weight of 0 it does not: `submit --explore` of before added such tasks."""
        return self.tunable and self.weight > 0


@dataclass(frozen=True)
class KeptValue:
    """A value that a model keeps from one run to the next: `output` of a run is `input` of the next.

    Before the first run every element of `input` is `first`.
    """

    input: str
    output: str
    first: Annotated[float, number()]


@dataclass(frozen=True)
class OpenBatch:
    """An open batch of an input that nobody gave a size, so that it was taken as 1.

    `dim` is its name in the file; empty if it has none. `shape` is that of the input with it.
    """

    input: str
    dim: str
    shape: tuple[Annotated[int, whole_number(0)], ...]


@dataclass(frozen=True, kw_only=True)
class JobSpec(JobOptions):
    """What was submitted: the options, with what was left out filled in, and what was read of the model.

    `submit` writes it once. `machine` is the CPU of the machine that it was submitted on. `entries` are its sets of
    shapes where there are several. `inputs` are those of the first. `automatic` says that the budget is what the tasks
    seemed to need, and that the job ends earlier when more trials would gain little. `board` is the NAME of the section
    [devices.NAME] of the boards that it is measured on; empty for a device of this machine. `metric` is what the times
    in its logs stand for. `quantisation` says what quantising the model cost, if `submit` did it: the job's copy of the
    model is quantised then. `own_error` says for each set of shapes how far the outputs of the model's own runtime are
    from each other, relative to the largest value: without optimisations, on other threads, for inputs that differ in
    the last bit. `verified_by` says for each of them what an export without inputs of the user is verified by, and
    `problem` why by nothing, where the runtime cannot run the model on random inputs. `state` is what the model keeps
    from run to run. `open_batches` are those that were taken as 1; its shapes say so as if that had been given.
    `digest` is that of the files as submitted. `inputs_version` says how random inputs are drawn, on which the job is
    verified and timed.
    """

    FORMAT = ("autotune-job", 1)

    id: int
    name: str
    model: str
    target: dict[str, Any]
    target_key: str
    inputs: tuple[InputSpec, ...]
    tasks: tuple[TaskSpec, ...]
    trials: Annotated[int, whole_number(1)]
    automatic: bool = False
    trials_per_round: Annotated[int, whole_number(1)] = field()  # field(): without the default of the option
    precision: Precision = "fp32"
    strategy: str = field()
    sampler: str = field()
    known_at_submit: tuple[Annotated[int, whole_number(0)], ...]
    submitted_at: Annotated[float, moment()]
    model_size: int = 0
    model_crc32: int = 0
    machine: str = ""
    entries: tuple[Entry, ...] = ()
    board: str = ""
    metric: Metric = field(default_factory=Metric)
    quantisation: Quantisation | None = None
    own_error: tuple[Annotated[float, number(0.0)], ...] = ()
    verified_by: tuple[VerifiedBy, ...] = ()
    problem: str = ""
    state: tuple[KeptValue, ...] = ()
    open_batches: tuple[OpenBatch, ...] = ()
    digest: ModelDigest | None = None
    inputs_version: Annotated[int, whole_number(1)] = 1
    seal: str = ""

    @property
    def all_entries(self) -> tuple[Entry, ...]:
        """Its sets of shapes. A single one is the entry `main`."""
        return self.entries or (Entry("main", self.inputs, tuple(task.weight for task in self.tasks)),)

    @property
    def tunable(self) -> tuple[int, ...]:
        return tuple(index for index, task in enumerate(self.tasks) if task.tunable)

    @property
    def target_kind(self) -> str:
        return str(self.target["kind"])


@dataclass(frozen=True)
class Control:
    """What the user wants of a job. Written by the commands only, under the queue lock.

    `reason` says why a job is held that the user did not hold. `forgiven` are the trials of each task, all of them
    failed, that do not count towards the budget since a retry. `forgiven_at` is when that was, in epoch
    seconds. The stages until then do not count towards the time that the job's stages may run for.
    """

    FORMAT = ("autotune-control", 1)

    wanted: Wanted = "run"
    retries: int = 0
    reason: Reason | None = None
    forgiven: tuple[Annotated[int, whole_number(0)], ...] = ()
    forgiven_at: Annotated[float, moment()] = 0.0


@dataclass(frozen=True)
class TaskProgress:
    """The progress of one task. `best_us` is the median time of its best trial, in microseconds."""

    trials: int = 0
    best_us: float | None = None
    set_aside: str = ""


@dataclass(frozen=True)
class JobState:
    """How far a job is. Written by the daemon only; everything in it follows from logs and stage files."""

    FORMAT = ("autotune-state", 1)

    state: State = "waiting"
    reason: Reason | None = None
    trials_done: int = 0
    tasks: tuple[TaskProgress, ...] = ()
    finished_at: Annotated[float, moment()] | None = None
    retries_seen: int = 0


@dataclass(frozen=True)
class Failure:
    """Why a candidate could not be built or measured: the stage, a keyword for statistics, and one line for people."""

    stage: Kind
    kind: Literal["error", "crash", "timeout", "memory", "wrong"]
    reason: str


@dataclass(frozen=True)
class GpuNeeds:
    """What the kernels of a candidate for a GPU need, as its compiler says: the most that one of them does.

    Registers and stack are those of a thread: values for which there is no register are on the stack. The shared memory
    is that of a block, as far as its size is fixed when it is compiled.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class LastId:
    """The largest id that a job of the workspace has had."""

    FORMAT = ("autotune-last-id", 1)

    id: Annotated[int, whole_number(0, most=10**9)]


@dataclass(frozen=True)
class Candidate:
    """A configuration that was proposed and not yet measured.

    Attributes:
        hash: The structural hash of the scheduled program.
        trace: TVM's JSON form of the schedule.
        args: TVM's JSON form of the arguments' shapes and types.
        library: The file name of the compiled library; empty before the build.
        seal: The seal of the library.
        failure: Why it could not be built; None if it was, or has yet to be.
        lost: How many boards have failed while they measured it, or how often what was built for it was gone then.
        needs: What its kernels need of a GPU; None before the build, and for other devices.
        build_s: How long the build took, in seconds; 0 before it.
    """

    hash: str
    trace: Any
    args: Any
    library: str = ""
    seal: str = ""
    failure: Failure | None = None
    lost: int = 0
    needs: GpuNeeds | None = None
    build_s: float = 0.0


@dataclass(frozen=True)
class StageFile:
    """The next stage of one round of a task. Each round has one file, which every stage replaces."""

    FORMAT = ("autotune-stage", 1)

    task: int
    round: int
    kind: Kind
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One line of a tuning log. `times_us` has the time of every repeat; a failed trial has a `failure` instead.

    `disturbed` says what disturbed the measurement where it could not be had quietly; such times are too long.
    `job` is the folder of the job that measured it: its name, or, of an imported trial, `HOST:WORKSPACE/jobs/NAME`.
    `needs` is what its kernels need of a GPU; None where it was not built for one. `build_s` and `measure_s` are the
    seconds that its build and its measurement took; 0 where that is not known.
    """

    hash: str
    trace: Any
    args: Any
    times_us: tuple[Annotated[float, positive()], ...]
    failure: Failure | None
    job: str
    round: Annotated[int, whole_number(0)]
    at: Annotated[float, moment()]
    disturbed: str = ""
    needs: GpuNeeds | None = None
    build_s: float = 0.0
    measure_s: float = 0.0

    @property
    def imported(self) -> bool:
        """Whether it was measured in another workspace."""
        return ":" in self.job

    @property
    def median_us(self) -> float | None:
        """Return the median of the repeats in microseconds; None for a failed trial."""
        return statistics.median(self.times_us) if self.times_us else None


@dataclass(frozen=True)
class QuietTimes:
    """What the sentinel of measurements took, in microseconds, while a machine with this CPU was quiet."""

    FORMAT = ("autotune-quiet", 1)

    cpu: str
    times_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class EstimatesFile:
    """How long stages took, by kind, device and task: the rows of `planning.estimates.Estimates.to_json`."""

    FORMAT = ("autotune-estimates", 1)

    means: tuple[Any, ...] = ()


# What turns the content of a file into that of the next version, by its format and version. A version that changes what
# an existing field means has an entry here; none has yet. A field that is added needs no new version.
UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain JSON values. A reason has only the parameters that it uses."""
    waits: dict[str, Reason] = getattr(value, "waits", {})
    values: dict[str, Any] = schema.plain(replace(value, waits={}) if waits else value)
    if isinstance(reason := getattr(value, "reason", None), Reason):
        values["reason"] = used_parameters(reason)
    if waits:
        values["waits"] = {job: used_parameters(reason) for job, reason in waits.items()}
    return values


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """Rebuild a dataclass from JSON values.

    Unknown keys are ignored, so that a field can be added without a new version of the format.

    Raises:
        InvalidData: The data is not what the dataclass says.
    """
    return schema.convert(kind, data)


def write(path: Path, value: Any) -> None:
    """Publish a dataclass that has a FORMAT.

    Raises:
        DiskProblem: The file could not be written. An older one is still there, whole.
    """
    name, version = value.FORMAT
    publish_json(path, name, version, to_json(value))


def read(kind: type[T], path: Path) -> T:
    """Read what `write` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: It is there, but it is not such a file or not whole.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    name, version = kind.FORMAT  # type: ignore[attr-defined]
    written, data = read_versioned_json(path, name, version)
    for older in range(written, version):
        data = UPGRADES[name, older](data)
    try:
        return from_json(kind, data)
    except InvalidData as error:
        raise DamagedFile(f"{path} is not a valid {name} file: {error}") from error
