"""Run a daemon as a child of this process, for code that tunes without a daemon of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType

from autotune.commands.job_status import snapshot
from autotune.errors import DaemonRunning, WorkerCrashed
from autotune.storage.daemon_info import running_daemon
from autotune.storage.paths import JobPaths, Workspace

_MESSAGE_BYTES = 4096  # of the end of the daemon's output


class DrainingDaemon:
    """Runs `autotune daemon run --drain` during a `with` block. At its end the daemon is stopped.

    Args:
        workspace: The workspace to serve.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._process = self._start()

    def __enter__(self) -> DrainingDaemon:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        self._messages.close()

    def keep_alive(self, jobs: Sequence[JobPaths]) -> None:
        """Make sure that a daemon works on jobs until all of them have ended. Call it repeatedly.

        The daemon exits if another daemon serves the workspace. It is started again when the other one has exited.

        Args:
            jobs: The jobs.

        Raises:
            WorkerCrashed: The daemon exited before the jobs had ended. The message says why.
        """
        code = self._process.poll()
        if code == DaemonRunning.exit_code:
            if running_daemon(self._workspace) is None:
                self._process = self._start()
        elif code is not None and (left := [job for job in snapshot(self._workspace, jobs) if not job.ended]):
            reason = left[0].reason if code == 0 else self._last_message()
            raise WorkerCrashed(f"the daemon left before job {left[0].id} ({left[0].name}) had ended: {reason}")

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(self._workspace.root.absolute())
        command = [sys.executable, "-m", "autotune", "--workspace", root, "daemon", "run", "--drain"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._messages)

    def _last_message(self) -> str:
        end = self._messages.seek(0, 2)
        self._messages.seek(max(0, end - _MESSAGE_BYTES))
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._process.returncode} and said nothing"
