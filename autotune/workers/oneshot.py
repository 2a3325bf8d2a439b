"""Run one piece of TVM work in a process of its own: import a model, or export one.

The command line never loads TVM itself, so a crash in an importer or a compiler is an error message. The
request goes to standard input as JSON; the answer comes back on standard output, after lines of progress.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any

from autotune import errors
from autotune.errors import AutotuneError, StageTimeout, WorkerCrashed
from autotune.processes.isolate import die_with_parent
from autotune.processes.memory import limit_process
from autotune.workers.worker import SINGLE_THREADED

_WORK = {"import": "autotune.tvm_backend.graph.ingest", "export": "autotune.tvm_backend.export.export"}
_KEPT = 500

Progress = Callable[[str], None]


def call(
    work: str, request: dict[str, Any], limit_s: float, progress: Progress, memory_share: float = 1.0
) -> dict[str, Any]:
    """Do the work and return its answer; `progress` is told each step.

    Args:
        limit_s: seconds after which it is killed.
        memory_share: how much of the machine's memory it may take.

    Raises:
        AutotuneError: the one that the work raised.
        WorkerCrashed: its process died.
        StageTimeout: it ran past `limit_s` and was killed.
    """
    with tempfile.TemporaryFile() as noise:
        process = _spawn(work, noise)
        limit_process(process.pid, memory_share)
        overdue = threading.Timer(limit_s, process.kill)
        overdue.start()
        try:
            answer = _converse(process, request, progress)
        finally:
            overdue.cancel()
            process.kill()
            process.wait()
        if answer is None:
            raise _silence(work, process.returncode, noise, limit_s if overdue.finished.is_set() else None)
    if "error" in answer:
        raise getattr(errors, answer["error"], AutotuneError)(answer["message"])
    return answer


def _spawn(work: str, noise: IO[bytes]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.workers.oneshot", work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        text=True,
        env={**os.environ, **SINGLE_THREADED, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )


def _converse(process: subprocess.Popen[str], request: dict[str, Any], progress: Progress) -> dict[str, Any] | None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(request))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; the end of its output says so
    for line in process.stdout:
        if not line.endswith("\n"):
            return None  # it died while it wrote
        message: dict[str, Any] = json.loads(line)
        if "progress" not in message:
            return message
        progress(message["progress"])
    return None


def _silence(work: str, status: int, noise: IO[bytes], limit_s: float | None) -> AutotuneError:
    """The error for a process that ended without an answer."""
    noise.seek(0)
    last = noise.read().decode(errors="replace").strip()[-_KEPT:].splitlines()[-1:]
    if limit_s is not None and status == -signal.SIGKILL:
        return StageTimeout(f"{work} killed after {limit_s:g} s")
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return WorkerCrashed(f"the process of this {work} died ({how}){': ' + last[0] if last else ''}")


def serve(work: str, requests: IO[str], answers: int) -> None:
    """Do one piece of work in this process: the request comes as JSON, the answers go to a file descriptor."""

    def say(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]

    try:
        module = import_module(_WORK[work])
        say(module.run(json.load(requests), lambda text: say({"progress": text})))
    except AutotuneError as error:
        say({"error": type(error).__name__, "message": str(error)})
    except MemoryError:
        say({"error": "WorkerError", "message": f"this {work} needs more memory than it may take"})
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[-1] if lines else ''}"
        say({"error": "WorkerError", "message": f"{work} failed: {reason}"[:_KEPT]})


def main() -> None:
    die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    serve(sys.argv[1], sys.stdin, answers)


if __name__ == "__main__":
    main()
