"""Read and check the folder that an export wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autotune.errors import BadInput, DamagedFile, disk_problem
from autotune.regular_file import read_regular
from autotune.tvm_backend.export import library_file
from autotune.tvm_backend.export.loadable import LIBRARY, REPORT, read_loadable


def read_report(folder: Path) -> dict[str, Any]:
    """Return the content of the report in a folder.

    Raises:
        BadInput: The folder has no exported model.
        DamagedFile: Its report is not JSON.
        DiskProblem: Its report cannot be read.
    """
    path = folder / REPORT
    try:
        return dict(json.loads(read_regular(path)))
    except FileNotFoundError:
        raise BadInput(f"{folder} holds no exported model: {path} is missing") from None
    except OSError as error:
        raise disk_problem("read", path, error) from error
    except (TypeError, ValueError, RecursionError) as error:  # TypeError: it is JSON, and no object
        raise DamagedFile(f"{path} is damaged: {error}; export the job again") from error


def check_folder(folder: Path) -> None:
    """Check that the library in a folder is what an export wrote, with all of its weights.

    Raises:
        BadInput: The folder has no exported model, or that of an earlier version, which says too little of it.
        DamagedFile: The library or the report is not what was written.
        DiskProblem: One of them cannot be read.
    """
    library = read_loadable(read_report(folder), folder / REPORT).library
    if library is None:
        raise BadInput(f"{folder / REPORT} is of an earlier version, and has no digests; export the job again")
    library_file.check(folder / LIBRARY, library, weights=True)
