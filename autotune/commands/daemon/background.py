"""Start and stop the daemon in the background, or run it as a child for code that has no daemon of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType

from autotune.commands.job_status import snapshot
from autotune.errors import DaemonRunning, MachineProblem, TimedOut, WorkerCrashed, disk_problem
from autotune.processes.interrupts import held_back
from autotune.regular_file import open_to_write
from autotune.storage.daemon_info import running_daemon
from autotune.storage.identity import Identity
from autotune.storage.paths import JobPaths, Workspace
from autotune.storage.private_folders import check_ours, private_folder

_START_LIMIT_S = 20.0
_POLL_S = 0.05
_MESSAGE_BYTES = 4096  # of the end of the daemon's output


def start(workspace: Workspace, options: Sequence[str] = ()) -> int:
    """Start a daemon that outlives this process, and wait until it serves the workspace.

    Args:
        options: Options of `daemon run`.

    Returns:
        The process id of the daemon.

    Raises:
        DaemonRunning: A daemon already serves the workspace.
        WorkerCrashed: The daemon did not start. The message names its log.
        DiskProblem: The log cannot be written.
    """
    if (info := running_daemon(workspace)) is not None:
        raise DaemonRunning(f"a daemon already serves {workspace.root.absolute()} (pid {info.identity['pid']})")
    try:
        private_folder(workspace.logs)
        log = open_to_write(workspace.daemon_log)
    except OSError as error:
        raise disk_problem("write", workspace.daemon_log, error) from error
    command = _run(workspace, *options)
    with log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if (info := running_daemon(workspace)) is not None:
            return int(info.identity["pid"])
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    raise WorkerCrashed(f"the daemon did not start; see {workspace.daemon_log}")


def _run(workspace: Workspace, *options: str) -> list[str]:
    """The command line of a daemon."""
    root = str(workspace.root.absolute())
    return [sys.executable, "-m", "autotune", "--workspace", root, "daemon", "run", *options]


def stop(workspace: Workspace, limit_s: float) -> int | None:
    """Stop the daemon and wait until it has exited.

    Args:
        workspace: The workspace that it serves.
        limit_s: How many seconds to wait at most.

    Returns:
        Its process id; None if there was no daemon.

    Raises:
        TimedOut: It still runs after `limit_s`.
        MachineProblem: It belongs to another user.
        DiskProblem: Another user can say which process it is.
    """
    info = running_daemon(workspace)
    if info is None:
        return None
    check_ours(workspace.jobs)  # or somebody else may say which process it is
    identity = Identity.from_json(info.identity)
    try:
        os.kill(identity.pid, signal.SIGTERM)
        os.kill(identity.pid, signal.SIGCONT)  # it may be stopped, as by Ctrl-Z
    except ProcessLookupError:  # it has just exited
        return identity.pid
    except PermissionError as error:
        raise MachineProblem(f"the daemon (pid {identity.pid}) is another user's, who can stop it") from error
    deadline = time.monotonic() + limit_s
    while identity.alive():
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"the daemon (pid {identity.pid}) still runs after {limit_s:g} s; run: kill -9 {identity.pid}"
            )
        time.sleep(_POLL_S)
    return identity.pid


class DrainingDaemon:
    """Runs `autotune daemon run --drain` during a `with` block. At its end the daemon is stopped.

    Stages that run then may end first, for as long as the daemon's settings say. After Ctrl-C they may not.

    Args:
        workspace: The workspace to serve.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  closed when the daemon is stopped
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DrainingDaemon:
        try:
            self._start()
        except BaseException:
            self._stop(signal.SIGQUIT)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self._stop(signal.SIGQUIT if interrupted else signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        if self._process is not None:
            try:
                self._process.send_signal(number)
                self._process.wait()
            except BaseException:
                with held_back():
                    self._process.send_signal(signal.SIGQUIT)
                    self._process.wait()
                raise
        self._messages.close()

    def keep_alive(self, jobs: Sequence[JobPaths]) -> None:
        """Make sure that a daemon works on jobs until all of them have ended. Call it repeatedly.

        The daemon exits if another daemon serves the workspace. It is started again when the other one has exited.

        Raises:
            WorkerCrashed: The daemon exited before the jobs had ended. The message says why.
        """
        code = self._process.poll() if self._process is not None else None
        if code == DaemonRunning.exit_code:
            if running_daemon(self._workspace) is None:
                self._start()
        elif code is not None and (left := [job for job in snapshot(self._workspace, jobs) if not job.ended]):
            reason = left[0].reason if code == 0 else self._last_message()
            raise WorkerCrashed(f"the daemon left before job {left[0].id} ({left[0].name}) had ended: {reason}")

    def _start(self) -> None:
        command = _run(self._workspace, "--drain")
        with held_back():  # or a daemon that has just been started would be nobody's
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._messages
            )

    def _last_message(self) -> str:
        end = self._messages.seek(0, 2)
        self._messages.seek(max(0, end - _MESSAGE_BYTES))
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        code = self._process.returncode if self._process is not None else None
        return lines[-1] if lines else f"it ended with {code} and said nothing"
