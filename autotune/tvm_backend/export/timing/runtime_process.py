"""A process that has loaded a model with one runtime and times it whenever it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import WorkerCrashed, WorkerError

MAX_S = 300.0  # that an answer may take: a model is loaded and run once, or for some tenths of a second
KERNELS = "kernels"  # the line that asks for them
_MESSAGE_LENGTH = 300  # characters of an error message that are kept


def running_file(outputs: str) -> Path:
    """Return the file that names the kernel that runs, beside that with the outputs of a first run."""
    return Path(outputs).with_suffix(".running")


class RuntimeProcess:
    """A process of `timed_process`, or of a script that adds runtimes to it.

    It begins to import its runtime at once, and others may do so meanwhile. Its `with` block ends the process.

    Args:
        name: The runtime, as errors name it.
        request: What `timed_process` gets.
        threads: How many threads the runtime uses.
        program: What Python is to run.

    Attributes:
        waited_s: How long this process has waited for its answers, in seconds.
    """

    def __init__(self, name: str, request: Mapping[str, Any], threads: int, program: Sequence[str]) -> None:
        self._name = name
        self._outputs: str | None = request.get("outputs")
        self.waited_s = 0.0
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        )
        self._tell(json.dumps(request))

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, whatever it does. One that a runtime has forked may hold its pipes: nothing waits for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what was written may not have been read
                assert pipe is not None
                pipe.close()
        self._said.close()

    def imported(self) -> None:
        """Wait until the runtime is imported. Errors are those of `time`."""
        self._answer()

    def load(self) -> dict[str, Any]:
        """Load the model, run it once, and return what `timed_process` answers. Errors are those of `time`.

        No other process should import or run anything meanwhile.
        """
        return self._ask("")

    def time(self) -> float | None:
        """Time the model once more.

        Returns:
            The milliseconds of a run; None if the model is slow and has been timed often enough.

        Raises:
            WorkerError: The runtime cannot run the model, or does not end a run of it.
            WorkerCrashed: The process died.
        """
        milliseconds: float | None = self._ask("")["ms"]
        return milliseconds

    def kernels(self) -> list[dict[str, Any]]:
        """Time the kernels of a library, and return what makes a `KernelTime` of each. Errors are those of `time`."""
        kernels: list[dict[str, Any]] = self._ask(KERNELS)["kernels"]
        return kernels

    def _ask(self, line: str) -> dict[str, Any]:
        self._tell(line)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        began = time.monotonic()
        if not select.select([self._process.stdout], [], [], MAX_S)[0]:
            raise self._late()
        answer = self._process.stdout.readline()
        self.waited_s += time.monotonic() - began
        if not answer.endswith("\n"):
            raise self._crashed()
        content: dict[str, Any] = json.loads(answer)
        if "error" in content:
            raise WorkerError(f"{self._name} cannot run the model: {content['error']}"[:_MESSAGE_LENGTH])
        return content

    def _late(self) -> WorkerError:
        """Return the error of a run that does not end, with the kernel that it has not got past where that is known."""
        line = f"{self._name} has not answered in {MAX_S:g} s: a run of the model takes too long to be compared"
        advice = "let the daemon run on, so that each kernel has a trial; `autotune status JOB` names those without"
        kernel = running_file(self._outputs) if self._outputs else None
        if kernel is None or not kernel.exists():
            return WorkerError(f"{line}; {advice}")
        since_s = time.time() - kernel.stat().st_mtime
        return WorkerError(f"{line}. Its kernel {kernel.read_text().strip()} has run for {since_s:.0f} s; {advice}")

    def _tell(self, line: str) -> None:
        """Write a line to the process. One that has died does not answer, or has said why before."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _crashed(self) -> WorkerCrashed:
        status = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()[-1:]
        return WorkerCrashed(f"the process that ran {self._name} died ({status}){': ' + said[0] if said else ''}")
