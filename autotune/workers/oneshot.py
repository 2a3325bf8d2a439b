"""Run one piece of TVM work in a process of its own: import a model, export one, or say how it is computed.

The command line never loads TVM itself, so a crash in an importer or a compiler is an error message. The process
reads one request from standard input, and writes `ProgressStep` and then an answer to standard output: see
`autotune.processes.messages`.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Literal

from autotune import errors
from autotune.errors import AutotuneError, OpenShapes, StageTimeout, WorkerCrashed, clipped, ran_out_of_memory
from autotune.processes.children import die_with_parent
from autotune.processes.interrupts import signal_name
from autotune.processes.memory import limit_process
from autotune.processes.message_stream import MessageReader
from autotune.processes.messages import (
    ExportAnswer,
    ExportRequest,
    ImportAnswer,
    ImportRequest,
    Message,
    PlanAnswer,
    PlanRequest,
    ProgressStep,
    WorkFailed,
    decode,
    send,
)
from autotune.workers.worker import SINGLE_THREADED

Work = Literal["import", "export", "plan"]
Request = ImportRequest | ExportRequest | PlanRequest
TellProgress = Callable[[str], None]

_MODULES: dict[str, str] = {
    "import": "autotune.tvm_backend.ingest",
    "export": "autotune.tvm_backend.export.process",
    "plan": "autotune.tvm_backend.export.process",
}
_REASON_LENGTH = 500
# An import copies weights many times, and on a virtual machine the first touch of each small page takes microseconds.
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"  # where the system allows them (madvise); other C libraries ignore it


def import_model(
    request: ImportRequest, limit_s: float, progress: TellProgress, memory_share: float = 1.0
) -> ImportAnswer:
    """Import a model and extract its tasks.

    Args:
        limit_s: Seconds after which the process is killed, not counting those for which it waits for a lease.
        progress: Is told each step.
        memory_share: How much of the machine's memory the process may take; 1 for all.

    Raises:
        AutotuneError: The one that the work raised.
        WorkerCrashed: Its process died.
        StageTimeout: It ran past `limit_s` and was killed.
    """
    answer = _call("import", request, limit_s, progress, memory_share)
    assert isinstance(answer, ImportAnswer)
    return answer


def export_model(request: ExportRequest, limit_s: float, progress: TellProgress) -> ExportAnswer:
    """Compile, verify and write the best so far of a job. Arguments and errors are those of `import_model`."""
    answer = _call("export", request, limit_s, progress, memory_share=1.0)
    assert isinstance(answer, ExportAnswer)
    return answer


def plan_model(request: PlanRequest, limit_s: float, progress: TellProgress) -> PlanAnswer:
    """Say how the model of a job is computed. Arguments and errors are those of `import_model`."""
    answer = _call("plan", request, limit_s, progress, memory_share=1.0)
    assert isinstance(answer, PlanAnswer)
    return answer


def _call(work: Work, request: Request, limit_s: float, progress: TellProgress, memory_share: float) -> Message:
    with tempfile.TemporaryFile() as stderr:
        process = _spawn(work, stderr)
        allowed = limit_process(process.pid, memory_share)
        limit = _TimeLimit(limit_s, lambda: os.kill(process.pid, signal.SIGKILL))
        limit.count()
        try:
            answer = _converse(process, request, progress, limit)
        finally:
            limit.pause()
            usage = _end(process)
            _close(process)
        if answer is None:
            raise _death(work, process.returncode, stderr, limit, usage, allowed)
    if isinstance(answer, WorkFailed):
        kind = getattr(errors, answer.error, AutotuneError)
        raise OpenShapes(answer.message, answer.advised) if kind is OpenShapes else kind(answer.message)
    return answer


class _TimeLimit:
    """Calls a function once `count` has counted some seconds. `pause` stops counting until `count` goes on."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds = seconds
        self.over = False
        self._left = seconds
        self._act = act
        self._timer: threading.Timer | None = None
        self._since = 0.0

    def count(self) -> None:
        if self._timer is None and not self.over:
            self._since = time.monotonic()
            self._timer = threading.Timer(max(0.0, self._left), self._end)
            self._timer.start()

    def pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = self._left - (time.monotonic() - self._since)

    def _end(self) -> None:
        self.over = True
        self._act()


@dataclass(frozen=True)
class _Usage:
    """What a process has used: the largest resident memory that it had, in bytes, and seconds of a CPU."""

    memory: int
    cpu_s: float


def _end(process: subprocess.Popen[bytes]) -> _Usage:
    """Kill a process; return what it has used. Nobody has waited for it before."""
    os.kill(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    memory = int(usage.ru_maxrss) * (1024 if sys.platform == "linux" else 1)
    return _Usage(memory, usage.ru_utime + usage.ru_stime)


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close our ends of its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _spawn(work: Work, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.workers.oneshot", work, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**_allocation(work), **os.environ, **SINGLE_THREADED, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )


def _allocation(work: Work) -> dict[str, str]:
    """Return what tells the C library how a process allocates memory, unless the user has told it already."""
    return {_TUNABLES: _HUGE_PAGES} if work == "import" else {}


def _converse(
    process: subprocess.Popen[bytes], request: Request, progress: TellProgress, limit: _TimeLimit
) -> Message | None:
    """Send the request and wait for the answer; None if the process ends without one.

    The time for which it waits for a lease is not counted.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        send(process.stdin.fileno(), request)
    except BrokenPipeError:
        pass  # it died at once; the end of its output says so
    finally:
        process.stdin.close()
    for data in MessageReader(process.stdout.fileno()):
        message = decode(data)
        if not isinstance(message, ProgressStep):
            return message
        limit.pause() if message.waiting else limit.count()
        progress(message.step)
    return None


def _death(work: Work, status: int, stderr: IO[bytes], limit: _TimeLimit, usage: _Usage, allowed: int) -> AutotuneError:
    """The error for a process that ended without an answer. `allowed` is the memory that it might have."""
    stderr.seek(0)
    last = stderr.read().decode(errors="replace").strip()[-_REASON_LENGTH:].splitlines()[-1:]
    if limit.over and status == -signal.SIGKILL:
        return StageTimeout(f"{work} killed after {limit.seconds:g} s")
    limited_s = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if status in (-signal.SIGXCPU, -signal.SIGKILL) and 0 <= limited_s <= usage.cpu_s + 1:
        return WorkerCrashed(
            f"the process of this {work} was killed: it may compute for {limited_s} s; raise the limit (ulimit -t)"
        )
    if status == -signal.SIGKILL:
        had, most = (f"{amount / 2**20:.0f} MiB" for amount in (usage.memory, allowed))
        return WorkerCrashed(
            f"the process of this {work} was killed, probably because this machine ran out of memory: it had {had} of"
            f" the {most} that it may take; end other programs, or use a machine with more memory"
        )
    how = signal_name(-status) if status < 0 else f"status {status}"
    return WorkerCrashed(f"the process of this {work} died ({how}){': ' + last[0] if last else ''}")


def serve(work: str, requests: int, answers: int) -> None:
    """Do one piece of work in this process.

    Args:
        work: `import` or `export`.
        requests: The file descriptor to read the request from.
        answers: The file descriptor to write progress and the answer to.
    """
    try:
        request = decode(next(iter(MessageReader(requests))))
        answer = import_module(_MODULES[work]).run(
            request, lambda step, waiting=False: send(answers, ProgressStep(step, waiting))
        )
        send(answers, answer)
    except Exception as error:
        send(answers, failure_of(work, error))


def failure_of(work: str, error: Exception) -> WorkFailed:
    """Return the message for what ended a piece of work: of an error of ours one of its kind."""
    if ran_out_of_memory(error):
        more = "use a machine with more, or give the model smaller inputs"
        return WorkFailed("WorkerError", f"this {work} needs more memory than it may take; {more}")
    if isinstance(error, AutotuneError):
        advised = error.advised if isinstance(error, OpenShapes) else ()
        return WorkFailed(type(error).__name__, clipped(str(error), 1000), advised)
    traceback.print_exception(error)
    lines = str(error).strip().splitlines()
    reason = f"{work} failed: {type(error).__name__}: {lines[-1] if lines else ''}"
    return WorkFailed("WorkerError", reason[:_REASON_LENGTH])


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    if os.environ.get(_TUNABLES) == _HUGE_PAGES:
        del os.environ[_TUNABLES]  # what it starts, such as a command of the user's, allocates as ever
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    serve(sys.argv[1], 0, answers)
    gc.freeze()  # or the interpreter would look through all of TVM for garbage, twice, before it ends


if __name__ == "__main__":
    main()
