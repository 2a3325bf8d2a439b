"""Write the output folder of an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.storage.atomic import make_folders, publish_bytes, publish_file, publish_json
from autotune.tvm_backend.export.submitted import ExportJob
from autotune.tvm_backend.export.timing.whole_model import Verified
from autotune.tvm_backend.export.writing import cpp_program, script
from autotune.tvm_backend.export.writing.files import LIBRARY, REPORT, REPORT_FORMAT, SCRIPT, SOURCE, move_source
from autotune.version import __version__


def sizes(export: ExportJob, tuned: Path) -> dict[str, float]:
    """Return the sizes of the model and of what is written, in megabytes."""
    folder = tuned.parent / SOURCE
    file = export.models[0].file
    sizes = {file.suffix[1:]: file.stat().st_size, LIBRARY: tuned.stat().st_size}
    if folder.exists():
        sizes[SOURCE] = sum(file.stat().st_size for file in folder.iterdir())
    return {name: round(size / 1e6, 3) for name, size in sizes.items()}


def write(export: ExportJob, tuned: Path, report: Mapping[str, Any], verified: Sequence[Verified]) -> None:
    """Write the output folder.

    Each file appears whole. The script comes first, because it marks the folder as written by autotune. The report
    comes last.
    """
    output = Path(export.request.output)
    publish_bytes(output / SCRIPT, _script(export, [item.case.inputs.rows for item in verified]).encode())
    publish_file(tuned, output / LIBRARY)
    if export.device.is_local_cpu:
        _write_program(export, verified)
    if export.request.source:
        move_source(tuned.parent / SOURCE, output / SOURCE)
    publish_json(output / REPORT, *REPORT_FORMAT, dict(report))


def _script(export: ExportJob, rows: Sequence[Mapping[str, int]]) -> str:
    if export.request.board is None:
        return script.source(export.spec, export.request.threads, rows)
    return script.board_source(export.spec, export.request.board, export.request.threads)


def _write_program(export: ExportJob, verified: Sequence[Verified]) -> None:
    """Write the C++ program.

    It gets a folder of its own, because the user may have another CMakeLists.txt beside the library.
    """
    folder = Path(export.request.output) / cpp_program.FOLDER
    make_folders(folder)
    spec = export.spec
    functions = [
        cpp_program.Function(case.entry.name, case.entry.inputs, item.outputs, case.inputs.rows)
        for item in verified
        for case in [item.case]
    ]
    for name, data in cpp_program.sources(spec.name, LIBRARY, export.request.threads, functions, __version__):
        publish_bytes(folder / name, data)
