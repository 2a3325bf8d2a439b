"""A process of the daemon that runs for long, is told what to do by its standard input, and answers by its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import disk_problem
from autotune.processes.children import refused
from autotune.regular_file import open_to_write


def start(module: str, log: Path, *options: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a module of ours as a process with its own session.

    Args:
        log: Where its standard error goes.
        options: Of its command line.
        variables: Of its environment, besides those of this process.

    Raises:
        DiskProblem: The log cannot be written.
        MachineProblem: The system starts no more processes.
    """
    try:
        file = open_to_write(log)
    except OSError as error:
        raise disk_problem("write", log, error) from error
    with file:
        try:
            return subprocess.Popen(
                [sys.executable, "-m", module, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **(variables or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise refused(error) from error


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process: a healthy one ends with its children when its standard input closes, any other is killed."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
