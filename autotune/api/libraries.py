"""Find the library that was exported for a model, for this CPU and number of threads.

A library is native code. So it is taken only where nobody but this user and root could have put it, and only for the
very content that it was made of. It is looked for beside the model, in its folder and in the folders in that, and then
in the registry that `export --register` writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from autotune.errors import AutotuneError, InvalidData
from autotune.machine.hardware import cpu_model
from autotune.ownership import intruder
from autotune.schema import convert, whole_number
from autotune.storage.export_registry import registered
from autotune.storage.model_digest import ModelDigest
from autotune.tvm_backend.export.folder import read_report
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT, CompiledFor
from autotune.tvm_backend.isa.instruction_sets import cpu_flags

_MAX_FOLDERS = 1000  # beside a model that are looked at


@dataclass(frozen=True)
class Origin:
    """What a report says of where its library is from, and of what it is for.

    Attributes:
        target: What it was compiled for.
        threads: How many threads it uses.
        digest: That of the model; None in the report of an earlier version.
        cpu: The CPU that it was tuned on.
        instructions: What the CPU must have.
        precision: What it computes in.
        exported_at: When, in epoch seconds.
    """

    target: CompiledFor
    threads: Annotated[int, whole_number(1)]
    digest: ModelDigest | None = None
    cpu: str | None = None
    instructions: tuple[str, ...] = ()
    precision: str = "fp32"
    exported_at: float = 0.0


@dataclass(frozen=True)
class ChosenLibrary:
    """The library that was chosen for a model, or why there is none.

    Attributes:
        folder: Its folder; None if there is none.
        report: The content of its report.
        reason: Why there is none; of one that there is, what it is.
    """

    folder: Path | None
    report: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class SoughtModel:
    """A model that a library is looked for.

    Attributes:
        bytes: The size of its file.
        digest: Returns its digest, given the paths of the files with its weights, from its folder.
        beside: Its folder; None if it is in no file.
    """

    bytes: int
    digest: Callable[[tuple[str, ...]], ModelDigest]
    beside: Path | None


def choose(model: SoughtModel, threads: int) -> ChosenLibrary:
    """Choose the library for a model.

    Args:
        model: The model.
        threads: How many threads it is to use; 0 for as many as there are.
    """
    made = list(_made_of(model))
    if not made:
        return ChosenLibrary(None, {}, "no library was exported for it")
    faults = [fault(folder, origin, threads) for folder, _, origin in made]
    fitting = [item for item, why in zip(made, faults, strict=True) if not why]
    if not fitting:
        return ChosenLibrary(None, {}, f"the library in {made[0][0]} is not used: {faults[0]}")
    folder, report, origin = max(fitting, key=lambda item: (item[2].threads, item[2].exported_at))
    precision = "" if origin.precision == "fp32" else f"in {origin.precision}, "
    plural = "" if origin.threads == 1 else "s"
    return ChosenLibrary(folder, report, f"the library in {folder} ({precision}{origin.threads} thread{plural})")


def fault(folder: Path, origin: Origin, threads: int) -> str:
    """Return why a library is not to be used in this process, or should not be; empty if it may."""
    try:
        open_to = next(filter(None, (intruder(folder / name) for name in (LIBRARY, REPORT))), "")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if open_to:
        return open_to
    if origin.target.kind != "llvm" or origin.cpu is None:
        return "it is not for the CPU of this machine"
    if origin.cpu != cpu_model():
        return f"it was tuned on {origin.cpu}, and this is {cpu_model()}"
    if missing := [name for name in origin.instructions if cpu_flags() and name not in cpu_flags()]:
        return f"it needs {', '.join(missing)}, which this CPU lacks"
    usable = len(os.sched_getaffinity(0))
    if threads and origin.threads != threads:
        return f"it is for {origin.threads} threads, and {threads} are asked for"
    if origin.threads > usable:
        return f"it is for {origin.threads} threads, and this process may use {usable} CPUs"
    return ""


def _made_of(model: SoughtModel) -> Iterator[tuple[Path, dict[str, Any], Origin]]:
    """Yield the folders of the libraries that were made of a model, with their reports."""
    digests: dict[tuple[str, ...], ModelDigest] = {}
    for folder in dict.fromkeys((*_beside(model.beside), *registered(model.bytes))):
        with suppress(AutotuneError, InvalidData, OSError):
            report = read_report(folder)
            origin = convert(Origin, report)
            if origin.digest is None or origin.digest.bytes != model.bytes:
                continue
            weights = tuple(origin.digest.weights)
            if weights not in digests:
                digests[weights] = model.digest(weights)
            if digests[weights] == origin.digest:
                yield folder, report, origin


def _beside(folder: Path | None) -> Iterator[Path]:
    """Yield a folder and those in it, where they may have an export in them."""
    if folder is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_MAX_FOLDERS), entries, strict=False):
            if entry.is_dir() and os.path.exists(os.path.join(entry.path, REPORT)):
                yield Path(entry.path)
    if (folder / REPORT).exists():
        yield folder
