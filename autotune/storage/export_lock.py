"""The lock file of an export: every choice that its library was made by, so that the same library can be made again.

It lies beside the library, and is made to be kept under version control. What is read from one is a claim, as trials of
other workspaces are: its schedules are checked before TVM sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from autotune.errors import BadInput, BadState, DamagedFile, InvalidData
from autotune.network_plan.plan import NOTHING, Plan
from autotune.options import Precision
from autotune.schema import whole_number
from autotune.storage import formats
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.untrusted_trials import CheckTrace, check_trial

LOCK = "autotune.lock"


@dataclass(frozen=True)
class LockedTask:
    """A task, and the trial whose schedule its kernel has; None for the default schedule."""

    name: str
    hash: str
    weight: Annotated[int, whole_number(0)]
    trial: Trial | None = None


@dataclass(frozen=True)
class ExportLock:
    """The choices of an export.

    Attributes:
        compiler: The digest of what compiled it.
        model_size: The size of the job's copy of the model, in bytes.
        model_crc32: Its checksum.
        target: What it was compiled for.
        precision: What it computes in.
        threads: How many threads it was compiled for.
        cuda_graph: Whether it launches its kernels as a CUDA graph, on a GPU.
        tasks: The tasks of the job, in order.
        plan: The plan of the network.
    """

    FORMAT = ("autotune-lock", 1)

    compiler: str
    model_size: int
    model_crc32: int
    target: dict[str, Any]
    precision: Precision
    threads: Annotated[int, whole_number(1)]
    cuda_graph: bool
    tasks: tuple[LockedTask, ...]
    plan: Plan = field(default=NOTHING)

    @property
    def trials(self) -> dict[str, Trial]:
        """The trials by the hash of their task."""
        return {task.hash: task.trial for task in self.tasks if task.trial is not None}


def read(folder: Path, check_trace: CheckTrace) -> ExportLock:
    """Read the lock file in a folder that an export wrote.

    Args:
        check_trace: Raises ValueError for a trace that is more than a schedule.

    Raises:
        BadInput: There is none.
        DamagedFile: It is not such a file, or has something in it that is no schedule.
        NewerFormat: A newer autotune wrote it.
        DiskProblem: It cannot be read.
    """
    path = folder / LOCK
    try:
        lock = formats.read(ExportLock, path)
        for trial in lock.trials.values():
            check_trial(trial, check_trace)
    except FileNotFoundError:
        raise BadInput(f"--frozen takes all choices from {path}, which is missing; export without it first") from None
    except InvalidData as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    return lock


def check(lock: ExportLock, spec: JobSpec, plan: Plan, path: Path) -> None:
    """Check that a job is the one that a lock file was written for, submitted in this workspace or in another one.

    Args:
        lock: The content of the file.
        path: The file, for the message.

    Raises:
        BadState: It is not: the first difference is named.
    """
    differences: list[tuple[str, Callable[[], bool]]] = [
        ("model", lambda: (lock.model_size, lock.model_crc32) == (spec.model_size, spec.model_crc32)),
        ("target", lambda: lock.target == spec.target),
        ("precision", lambda: lock.precision == spec.precision),
        ("plan", lambda: lock.plan == plan),
        ("tasks", lambda: _weights(lock) == {task.hash: task.weight for task in spec.tasks}),
    ]
    different = next((what for what, is_same in differences if not is_same()), None)
    if different:
        raise BadState(
            f"{path} is for another {different} than job {spec.id} ({spec.name}) has: submit the model with the options"
            " of the job that it was written for, or export without --frozen"
        )


def _weights(lock: ExportLock) -> dict[str, int]:
    return {task.hash: task.weight for task in lock.tasks}
