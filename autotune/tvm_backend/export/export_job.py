"""What is exported: a job and its model, as it was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.processes.messages import ExportRequest
from autotune.storage.formats import JobSpec
from autotune.storage.paths import JobPaths, Workspace
from autotune.tvm_backend.export.submitted import Submitted


@dataclass(frozen=True)
class ExportJob:
    """An export: the request, the job that it is about, and its model at each set of shapes."""

    request: ExportRequest
    workspace: Workspace
    paths: JobPaths
    spec: JobSpec
    models: list[Submitted]
