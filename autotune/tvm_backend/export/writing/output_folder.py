"""Write the folder of an export: the library, the programs that run it, the choices that it was made by, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.storage import formats
from autotune.storage.atomic import make_folders, publish_bytes, publish_file, publish_json
from autotune.storage.export_lock import LOCK, ExportLock, LockedTask
from autotune.storage.formats import Trial
from autotune.storage.job_files import read_plan
from autotune.tvm_backend.compiler_digest import compiler_digest
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT, OpenDimensions
from autotune.tvm_backend.export.submitted import ExportJob, GgufModel
from autotune.tvm_backend.export.verification.verify_model import Verified
from autotune.tvm_backend.export.writing import cpp_program, script
from autotune.tvm_backend.export.writing.files import REPORT_FORMAT, SCRIPT, SOURCE, TOKENIZER, move_source
from autotune.version import __version__


def lock_of(job: ExportJob, picked: Mapping[str, Trial]) -> ExportLock:
    """Return the choices that a library was made by."""
    spec = job.spec
    return ExportLock(
        compiler=compiler_digest(),
        model_size=spec.model_size,
        model_crc32=spec.model_crc32,
        target=spec.target,
        precision=spec.precision,
        threads=job.request.threads,
        cuda_graph=job.request.cuda_graph,
        tasks=tuple(LockedTask(task.name, task.hash, task.weight, picked.get(task.hash)) for task in spec.tasks),
        plan=read_plan(job.paths),
    )


def write(
    export: ExportJob, tuned: Path, report: Mapping[str, Any], verified: Sequence[Verified], lock: ExportLock
) -> None:
    """Write the output folder.

    Each file appears whole. The script comes first, because it marks the folder as written by autotune. The report
    comes last.
    """
    output = Path(export.request.output)
    publish_bytes(output / SCRIPT, _script(export, report, verified).encode())
    publish_file(tuned, output / LIBRARY)
    model = export.models[0]
    if isinstance(model, GgufModel) and (tokenizer := model.tokenizer()) is not None:
        publish_bytes(output / TOKENIZER, tokenizer.encode())
    if export.device.is_local_cpu:
        library = cpp_program.Library(
            LIBRARY, report["library"]["bytes"], export.request.threads, report["instructions"]
        )
        _write_program(export, library, verified, _padding(report))
    if export.request.source:
        move_source(tuned.parent / SOURCE, output / SOURCE)
    formats.write(output / LOCK, lock)
    publish_json(output / REPORT, *REPORT_FORMAT, dict(report))


def _script(export: ExportJob, report: Mapping[str, Any], verified: Sequence[Verified]) -> str:
    instructions = report["instructions"]
    model = export.models[0]
    if isinstance(model, GgufModel):
        return script.language_source(
            export.spec, export.request.threads, instructions, verified[0].case.inputs.rows, model.end_tokens()
        )
    if export.request.board is None:
        rows = [item.case.inputs.rows for item in verified]
        return script.source(export.spec, export.request.threads, rows, instructions, _padding(report))
    return script.board_source(export.spec, export.request.board, export.request.threads, instructions)


def _padding(report: Mapping[str, Any]) -> OpenDimensions:
    padding = report["padding"]
    return OpenDimensions(padding["inputs"], padding["outputs"], padding["counts"])


def _write_program(
    export: ExportJob, library: cpp_program.Library, verified: Sequence[Verified], padding: OpenDimensions
) -> None:
    """Write the C++ program.

    It gets a folder of its own, because the user may have another CMakeLists.txt beside the library.
    """
    folder = Path(export.request.output) / cpp_program.FOLDER
    make_folders(folder)
    spec = export.spec
    functions = [
        cpp_program.CppFunction(case.entry.name, case.entry.inputs, item.outputs, case.inputs.rows, padding)
        for item in verified
        for case in [item.case]
    ]
    model = export.models[0]
    end = model.end_tokens() if isinstance(model, GgufModel) else None
    for name in cpp_program.LANGUAGE:  # those of an earlier export: CMake builds what is there
        (folder / name).unlink(missing_ok=True)
    for name, data in cpp_program.sources(spec.name, library, functions, __version__, end):
        publish_bytes(folder / name, data)
