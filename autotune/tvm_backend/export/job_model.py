"""The model of a job as its tasks were extracted from it, ready to be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import VerificationError
from autotune.storage.formats import JobSpec, Trial
from autotune.storage.paths import JobPaths
from autotune.tvm_backend.export.submitted import submitted
from autotune.tvm_backend.target import tvm_target


@dataclass(frozen=True)
class JobModel:
    """A model with a function for each set of shapes.

    Attributes:
        imported: The model as it was imported.
        prepared: The model after the passes.
        programs: The tensor programs of its tasks.
        target: What it is compiled for.
    """

    imported: Any
    prepared: Any
    programs: tuple[Any, ...]
    target: Any

    @classmethod
    def read(cls, paths: JobPaths, spec: JobSpec) -> JobModel:
        """Read the copy of the model that was submitted, and extract its tasks again.

        Raises:
            VerificationError: They are not those that were submitted.
        """
        from autotune.tvm_backend.export.join import Joiner
        from autotune.tvm_backend.graph.prepare import prepare
        from autotune.tvm_backend.search.tasks import extract_tasks

        target = tvm_target(spec.target)
        imported, prepared, programs = Joiner(), Joiner(), dict[str, Any]()
        for entry, model in zip(spec.all_entries, submitted(paths, spec), strict=True):
            module = model.module()
            lowered = prepare(
                module, target, winograd=spec.winograd, revision=spec.graph_revision, precision=spec.precision
            )
            # Of equal programs, whose blocks may have other names, the first is that in the joined module.
            programs = {task.spec.hash: task.program for task in extract_tasks(lowered, target)} | programs
            imported.add(entry.name, module)
            prepared.add(entry.name, lowered)
        lost = set(programs) ^ {task.hash for task in spec.tasks}
        if lost:
            raise VerificationError(
                f"the model has other tasks than when it was submitted ({len(lost)} differ); submit it again"
            )
        return cls(imported.module(), prepared.module(), tuple(programs.values()), target)

    def compile_tuned(self, best: Mapping[str, Trial], library: Path, *, cuda_graph: bool = False) -> tuple[Any, Any]:
        """Write the library with the best trial of each task. `cuda_graph` is that of `finish`.

        Returns:
            The module as it was lowered, and the executable.
        """
        from autotune.tvm_backend.export.compile import build_lowered, lower_tuned
        from autotune.tvm_backend.kernels.build import linking

        lowered = lower_tuned(self.prepared, self.programs, best, self.target, cuda_graph=cuda_graph)
        executable = build_lowered(lowered, self.target)
        executable.export_library(str(library), fcompile=linking(self.target))
        return lowered, executable

    def compile_untuned(self, library: Path) -> None:
        """Write the library that TVM makes by default."""
        from autotune.tvm_backend.export.compile import compile_untuned
        from autotune.tvm_backend.kernels.build import linking

        compile_untuned(self.imported, self.target).export_library(str(library), fcompile=linking(self.target))
