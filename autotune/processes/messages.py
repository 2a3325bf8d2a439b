"""The messages that cross the boundaries between our processes.

    daemon  -> worker           RunStage, KillStage
    worker  -> daemon           Ready or Fatal, once; then a StageReport for every stage
    stage   -> worker           StageBegan, then a StageReport
    command -> one-shot process ImportRequest, ExportRequest or PlanRequest
    daemon  -> cluster bridge   RunStage, KillStage
    cluster bridge -> daemon    Ready or Fatal, once; then ClusterNodes and StageReport
    one-shot process -> command ProgressStep, any number; then ImportAnswer, ExportAnswer, PlanAnswer or WorkFailed

On the wire a message is one line: a JSON object with its fields and its `type`. Both ends are always of the same
version: one starts the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from autotune.device_settings import BoardSettings
from autotune.metric import Metric
from autotune.network_plan.plan import NOTHING, Plan
from autotune.options import Activations, AskedPrecision, Constant, InputSpec, Precision
from autotune.processes.message_stream import MessageReader, encode
from autotune.storage.atomic import write_all
from autotune.storage.daemon_info import ClusterNode
from autotune.storage.formats import (
    Entry,
    KeptValue,
    Kind,
    OpenBatch,
    ShapeBinding,
    TaskSpec,
    VerifiedBy,
    from_json,
    to_json,
)
from autotune.storage.model_digest import ModelDigest
from autotune.storage.quantisation import Quantisation

StageOutcome = Literal["done", "failed", "busy", "blocked", "unfit", "crashed", "timeout", "lost", "device-lost"]


@dataclass(frozen=True)
class RunStage:
    """Run the next stage of a round.

    Attributes:
        id: chosen by the daemon; comes back in the report.
        job: the name of the job's folder.
        kind: what the daemon takes the stage for. The stage file decides what is run.
        limit_s: seconds after which the stage is killed, from when it holds its leases.
        resources: the names of the leases to hold meanwhile.
        count: how many candidates a search is asked for.
        device: what a measurement runs on, such as `cuda:1`.
        attempt: how often this stage has failed, as far as this daemon knows.
        cross: whether its job is measured on CPUs of another model, so that nothing compiled for them is run here.
    """

    id: int
    job: str
    task: int
    round: int
    kind: Kind
    cpus: tuple[int, ...]
    limit_s: float
    resources: tuple[str, ...] = ()
    count: int = 0
    device: str = ""
    attempt: int = 0
    cross: bool = False


@dataclass(frozen=True)
class KillStage:
    """Kill the stage with this id, if it runs."""

    id: int


@dataclass(frozen=True)
class StageBegan:
    """The stage with this id holds its leases. Its time is counted from now on."""

    id: int


@dataclass(frozen=True)
class Ready:
    """The worker has loaded what stages need, and takes commands."""

    pid: int


@dataclass(frozen=True)
class Fatal:
    """The worker cannot run any stage, and exits."""

    reason: str


@dataclass(frozen=True)
class StageReport:
    """What became of a stage.

    Attributes:
        outcome: `done`; `failed` with an error; `busy`: its resources are leased by somebody else; `blocked`:
            nothing can run now, because the disk is full, say; `unfit`: this machine cannot work for the target of
            its job; `crashed`: its process died; `timeout`; `lost`: the machine that it ran on is
            gone, or does not answer; `device-lost`: that is so of the board that it was to measure on.
        seconds: how long it ran, from when it held its leases.
        waited: how many seconds it waited for them before.
        summary: what a stage that is `done` returned.
        reason: what happened, for every other outcome.
        tried: the target that was found to work here on this occasion; its worker takes note of it.
    """

    id: int
    outcome: StageOutcome
    seconds: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    tried: str = ""
    waited: float = 0.0


@dataclass(frozen=True)
class ClusterNodes:
    """The nodes of the cluster have changed: all of them as they are now."""

    nodes: tuple[ClusterNode, ...]


@dataclass(frozen=True)
class ImportRequest:
    """Import a model and extract its tasks. Paths are absolute.

    Attributes:
        model: path of the model's file.
        target: as the user wrote it.
        threads: how many threads candidates are measured on.
        cpus: the CPUs to work on; one of them is leased.
        lock_folder: where leases are.
        shapes: the sets of shapes to import the model with.
        values: inputs that are constants, by their names.
        winograd: whether 3x3 convolutions may be computed by Winograd's algorithm.
        precision: what convolutions and products are computed in.
        folder: where to write the model's snapshot and the programs of its tasks; None to write nothing.
        board: the key of the boards that the target is for; empty for a device of this machine.
        calibrate: a file with inputs that the model is quantised with; empty not to quantise it.
        max_drop: which part of its top-1 answers may change by that, or of its accuracy be lost; None for any.
        accuracy: the command that prints how good outputs are; empty for none.
        plan: decides about the operators that it names.
        memory_mb: how much memory activations may take, in megabytes; None for any.
        context: how many tokens a language model keeps; None for the default.
        activations: what a language model's activations are where packed weights multiply them.
    """

    model: str
    target: str
    threads: int
    cpus: tuple[int, ...]
    lock_folder: str
    shapes: tuple[ShapeBinding, ...]
    values: dict[str, Constant]
    winograd: bool
    folder: str | None
    board: str = ""
    precision: AskedPrecision = "fp32"
    calibrate: str = ""
    max_drop: float | None = None
    accuracy: str = ""
    plan: Plan = NOTHING
    memory_mb: float | None = None
    context: int | None = None
    activations: Activations = "fp32"


@dataclass(frozen=True)
class ImportAnswer:
    """What a submission would tune, or tunes.

    Attributes:
        target: TVM's description of the target.
        target_key: names the target in paths of tuning logs.
        spaces: the sizes of the tasks' design spaces.
        model_size: of the snapshot, in bytes; 0 if none was written.
        model_crc32: of the snapshot.
        inputs: those of the first set of shapes.
        entries: the sets of shapes where there are several.
        metric: what its candidates are measured by.
        quantisation: what quantising it cost; None if it was not.
        own_error: how far its own runtime is from itself, at each set of shapes; empty if nothing was written.
        verified_by: what an export is verified by, at each set of shapes; empty if nothing was written.
        problem: what its own runtime says of random inputs that it cannot run; empty if it can.
        precision: what it is computed in.
        constant_bytes: the size of the constants that a run reads.
        state: what it keeps from run to run.
        open_batches: those that nobody gave a size.
        digest: of its files; None if nothing was written.
    """

    target: dict[str, Any]
    target_key: str
    inputs: tuple[InputSpec, ...]
    tasks: tuple[TaskSpec, ...]
    spaces: tuple[int, ...]
    model_size: int = 0
    model_crc32: int = 0
    entries: tuple[Entry, ...] = ()
    metric: Metric = field(default_factory=Metric)
    quantisation: Quantisation | None = None
    own_error: tuple[float, ...] = ()
    verified_by: tuple[VerifiedBy, ...] = ()
    problem: str = ""
    precision: Precision = "fp32"
    constant_bytes: int = 0
    state: tuple[KeptValue, ...] = ()
    open_batches: tuple[OpenBatch, ...] = ()
    digest: ModelDigest | None = None


@dataclass(frozen=True)
class ExportRequest:
    """Compile the best so far of a job. Paths are absolute.

    Attributes:
        workspace: the folder of the workspace.
        job: the name of the job's folder.
        output: the folder to write the library to.
        cpus: the CPUs to compile on; one of them is leased.
        measure_cpus: the CPUs to compare on; all of them are leased.
        threads: how many threads the model is compiled for.
        lock_folder: where leases are.
        tolerance: the largest error that is accepted, relative to the largest value of its output.
        turns: how often each model is timed.
        compare_s: the seconds that this may take at each set of shapes, in more than one turn of fresh processes.
        contenders: how many candidates of each task are timed again.
        disturbed_only: whether they are so only of tasks where the measurement of one of them was disturbed.
        inputs: files with inputs to verify and to compare on, each for one set of shapes; others are drawn.
        source: whether to write the network as C++ source, too.
        board: the settings of the boards that the job is for; None for a device of this machine.
        cuda_graph: whether a library for CUDA launches its kernels as a CUDA graph.
        untuned: whether the model is compiled with TVM's default schedules, too, to compare with.
        quick: whether the library is written as soon as it is verified, and nothing is timed.
        kept_bytes: how large the compiled kernels of the workspace that are kept may be together; 0 to keep none.
        frozen: whether all choices are those of the lock file in `output`, and nothing is timed.
        fewer_threads: whether the library is timed on fewer threads, too, and made for the fastest number of them.
    """

    workspace: str
    job: str
    output: str
    cpus: tuple[int, ...]
    measure_cpus: tuple[int, ...]
    threads: int
    lock_folder: str
    tolerance: float
    turns: int
    compare_s: float
    contenders: int
    inputs: tuple[str, ...]
    disturbed_only: bool = False
    source: bool = False
    board: BoardSettings | None = None
    cuda_graph: bool = True
    untuned: bool = False
    quick: bool = False
    kept_bytes: int = 0
    frozen: bool = False
    fewer_threads: bool = False


@dataclass(frozen=True)
class ExportAnswer:
    """The report on an export, as in `report.json`."""

    report: dict[str, Any]


@dataclass(frozen=True)
class PlanRequest:
    """Say how the model of a job is computed. Paths are absolute.

    Attributes:
        workspace: the folder of the workspace.
        job: the name of the job's folder.
        cpus: the CPUs to work on; one of them is leased.
        lock_folder: where leases are.
        entry: the name of its set of shapes; empty where there is one.
    """

    workspace: str
    job: str
    cpus: tuple[int, ...]
    lock_folder: str
    entry: str = ""


@dataclass(frozen=True)
class PlanAnswer:
    """The plan of a job's model."""

    plan: Plan


@dataclass(frozen=True)
class ProgressStep:
    """The step that an import or export has reached, in words for the user.

    Attributes:
        waiting: Whether it waits for a lease, which does not count towards its time limit.
    """

    step: str
    waiting: bool = False


class StepReporter(Protocol):
    """Tells of each step of an import or export when it starts: see `ProgressStep`."""

    def __call__(self, step: str, waiting: bool = False) -> None: ...


@dataclass(frozen=True)
class WorkFailed:
    """An import or export has failed. `error` is the name of a class in `autotune.errors`.

    `advised` is that of an `OpenShapes`.
    """

    error: str
    message: str
    advised: tuple[str, ...] = ()


Message = (
    RunStage | KillStage | StageBegan | Ready | Fatal | StageReport | ClusterNodes | ImportRequest | ImportAnswer
    | ExportRequest | ExportAnswer | PlanRequest | PlanAnswer | ProgressStep | WorkFailed
)  # fmt: skip

_TYPES: dict[str, type[Message]] = {
    "run": RunStage,
    "kill": KillStage,
    "began": StageBegan,
    "ready": Ready,
    "fatal": Fatal,
    "report": StageReport,
    "nodes": ClusterNodes,
    "import": ImportRequest,
    "imported": ImportAnswer,
    "export": ExportRequest,
    "exported": ExportAnswer,
    "plan": PlanRequest,
    "planned": PlanAnswer,
    "progress": ProgressStep,
    "work failed": WorkFailed,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def decode(data: dict[str, Any]) -> Message:
    """Return the message that `send` was given.

    Raises:
        KeyError, InvalidData: the data is not such a message.
    """
    return from_json(_TYPES[data["type"]], data)


def send(descriptor: int, message: Message) -> None:
    """Write all of a message to a pipe.

    Raises:
        TypeError, ValueError: a summary or report is not JSON. Nothing was written.
        OSError: the reader is gone (`BrokenPipeError`), say.
    """
    write_all(descriptor, encode({"type": _NAMES[type(message)], **to_json(message)}))


def receive(reader: MessageReader) -> list[Message]:
    """Read once from a pipe, and return the messages that are complete now: none, one or several."""
    return [decode(data) for data in reader.receive()]
