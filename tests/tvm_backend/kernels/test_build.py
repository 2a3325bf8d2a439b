"""A candidate is to blame for what its linker says, and not for a machine that starts no linker."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ProcessRefused, WorkerError
from autotune.tvm_backend.kernels.build import link_shared


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_starts_no_linker_is_the_machines_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ProcessRefused, match="starts no more processes"):
        link_shared(str(tmp_path / "out.so"), [])


def test_what_the_linker_refuses_is_the_candidates_problem(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(b"no object file")
    with pytest.raises(WorkerError, match="failed"):
        link_shared(str(tmp_path / "out.so"), [str(damaged)])
