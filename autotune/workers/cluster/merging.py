"""Put what a stage has written on a node into the workspace, as the stage itself would have done here."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import disk_problem
from autotune.storage.atomic import make_folders, publish_bytes, remove
from autotune.storage.quarantine import Quarantine
from autotune.workers.cluster.parcel import Parcel, StageFiles
from autotune.workers.cluster.sending import LogReader

_LIBRARY = ".so"


def merge(stage: StageFiles, parcel: Parcel, logs: LogReader) -> None:
    """Write all of it. May be called again after an error.

    The stage files come last: they commit what the stage did.

    Raises:
        DiskProblem: Something could not be written.
    """
    if parcel.quarantined:
        Quarantine(stage.workspace.quarantine).add(parcel.quarantined)
    merge_trials(stage, parcel, logs)
    if not stage.job.folder.is_dir():  # the job was deleted meanwhile
        return
    for name, data in parcel.files.items():
        path = stage.workspace.root / name
        if stage.may_write(name) and not _is_later_round(stage, path):
            _publish(path, data)
    for name in parcel.deleted:
        if stage.may_write(name):
            _remove(stage.workspace.root / name)


def merge_trials(stage: StageFiles, parcel: Parcel, logs: LogReader) -> None:
    """Append the trials whose candidates are not in the log yet.

    Raises:
        DiskProblem: They could not be written.
    """
    for trials in parcel.trials.values():
        logs.of(stage.log).add(trials)


def _publish(path: Path, data: bytes) -> None:
    """Publish a file. Libraries need not be durable: their checksums are in the stage file."""
    make_folders(path.parent)
    if path.suffix != _LIBRARY:
        return publish_bytes(path, data)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise disk_problem("write", path, error) from error


def _remove(path: Path) -> None:
    """Delete a file; a library that a power cut brings back is deleted with the folders that have no stage file."""
    if path.suffix == _LIBRARY:
        path.unlink(missing_ok=True)
    else:
        remove(path)


def _is_later_round(stage: StageFiles, path: Path) -> bool:
    """Return whether a file begins a round of the task that has begun already, here or elsewhere."""
    request = stage.request
    if path != stage.job.stage(request.task, request.round + 1):
        return False
    return any(other >= path for other in stage.job.stage_files_of(request.task))
