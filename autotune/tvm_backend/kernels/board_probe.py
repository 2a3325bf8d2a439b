"""Test whether a board works: run a kernel on it that is known to be good."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import BoardProblem
from autotune.machine.boards import Lent
from autotune.processes.isolate import isolated
from autotune.tvm_backend.kernels.probe import build_probe, check_answers, probe_folder, said_by
from autotune.tvm_backend.kernels.run_board import close_session, open_session

_LIMIT_S = 30.0


def check_board(description: Mapping[str, Any], lent: Lent) -> None:
    """Compile the test kernel for a board, and run it there, in a process that may hang.

    Raises:
        BoardProblem: It did not work. The message names the board and says why.
        MachineProblem, DiskProblem: There is no folder for temporary files here, or its disk is full.
    """
    with probe_folder() as folder:
        library = Path(folder) / "probe.so"
        build_probe(description, library)
        ((_, outcome),) = isolated([lent], lambda: lambda it: _run(it, library), limit_s=_LIMIT_S)
    if outcome.kind != "ok":
        raise BoardProblem(f"a kernel that is known to be good fails on the board at {lent}: {said_by(outcome)}")


def _run(lent: Lent, library: Path) -> None:
    session = open_session(lent, _LIMIT_S, threads=1)
    try:
        session.upload(str(library))
        check_answers(session.load_module(library.name), session.cpu(0))
    finally:
        close_session(session)
