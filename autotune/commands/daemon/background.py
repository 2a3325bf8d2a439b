"""Start and stop the daemon in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from autotune.errors import DaemonRunning, MachineProblem, TimedOut, WorkerCrashed, disk_problem
from autotune.storage.daemon_info import running_daemon
from autotune.storage.identity import Identity
from autotune.storage.paths import Workspace
from autotune.storage.room import private_folder

_START_LIMIT_S = 20.0
_POLL_S = 0.05


def start(workspace: Workspace, options: Sequence[str] = ()) -> int:
    """Start a daemon that outlives this process, and wait until it serves the workspace.

    Args:
        workspace: The workspace.
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
        log = workspace.daemon_log.open("ab")
    except OSError as error:
        raise disk_problem("write", workspace.daemon_log, error) from error
    command = [
        sys.executable,
        "-m",
        "autotune",
        "--workspace",
        str(workspace.root.absolute()),
        "daemon",
        "run",
        *options,
    ]
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
    """
    info = running_daemon(workspace)
    if info is None:
        return None
    identity = Identity.from_json(info.identity)
    try:
        os.kill(identity.pid, signal.SIGTERM)
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
