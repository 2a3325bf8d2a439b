"""Nights: entries for cron and units for systemd that run the daemon in a window of hours.

Both start programs with next to nothing in the environment, so the entries spell out what the daemon needs: the
workspace, the Python that autotune is installed in, and a PATH with the linker and the CUDA tools of this shell. They
also start the daemon when the machine comes up; outside of its window it waits and costs nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput, DaemonRunning, TimedOut
from autotune.planning.windows import parse_window
from autotune.storage.paths import Workspace

_TOOLS = ("ld", "gcc", "cc", "clang", "nvcc", "nvidia-smi")
_STANDARD = ("/usr/local/bin", "/usr/bin", "/bin")
# What else decides how TVM and its compilers are found.
_PASSED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "TVM_CUDA_COMPILE_MODE")
# Cron cuts longer lines off without a word.
_LONGEST_CRON_LINE = 990
_STOP_MARGIN_S = 30
# Exit codes of a daemon that found another one, that ended with its window, or that was told to stop.
_NO_FAILURES = (DaemonRunning.exit_code, TimedOut.exit_code, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Nights:
    """A daemon that is to serve a workspace in a window of hours.

    Attributes:
        workspace: The workspace; its path is absolute.
        start: The hour and the minute at which the window opens.
        window: The window, such as `22:00-07:00`.
        environment: The variables that the daemon gets.
        python: The Python that autotune is installed in.
        stop_s: How many seconds the daemon may take to stop.
    """

    workspace: Workspace
    start: tuple[int, int]
    window: str
    environment: Mapping[str, str]
    python: str
    stop_s: float

    @classmethod
    def of(cls, workspace: Workspace, window: str, stop_grace_s: float) -> Nights:
        """Describe the nights of a workspace, with the environment of this process.

        Raises:
            BadInput: The window is none, or the path of the workspace cannot be written in an entry.
        """
        try:
            hours = parse_window(window)
        except ValueError as error:
            raise BadInput(f"--window: {error}") from error
        root = Path(os.path.abspath(workspace.root))
        if not str(root).isprintable():
            raise BadInput(f"the path of the workspace, {str(root)!r}, cannot be written in an entry")
        environment = {"PATH": _path(), **_passed_on(), "AUTOTUNE_WORKSPACE": str(root)}
        begin = (hours.start.hour, hours.start.minute)
        plain = f"{hours.start:%H:%M}-{hours.end:%H:%M}"
        return cls(Workspace(root), begin, plain, environment, sys.executable, stop_grace_s + _STOP_MARGIN_S)

    @property
    def command(self) -> list[str]:
        """The words of the daemon's command line."""
        until = self.window.partition("-")[2]
        return [self.python, "-m", "autotune", "daemon", "run", "--window", self.window, "--until", until]

    @property
    def log(self) -> Path:
        """The file that gets what the daemon prints."""
        return self.workspace.daemon_log


def _path() -> str:
    """Return a short PATH on which everything is found that is found on this one."""
    found = [Path(tool).parent for tool in map(shutil.which, _TOOLS) if tool]
    folders = [Path(sys.executable).parent, *found, *map(Path, _STANDARD)]
    return os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in folders))


def _passed_on() -> dict[str, str]:
    return {name: value for name in _PASSED_ON if (value := os.environ.get(name, "")) and value.isprintable()}


def unit_name(workspace: Workspace) -> str:
    """Return the name of a workspace's units: its folder's, and a digest of its path."""
    root = os.path.abspath(workspace.root)
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", Path(root).name).strip("-")[:32] or "workspace"
    return f"autotune-{plain}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def marks(workspace: Workspace) -> tuple[str, str]:
    """Return the comments around the entries of a workspace in a crontab."""
    root = os.path.abspath(workspace.root)
    return f"# BEGIN autotune {root}", f"# END autotune {root}"


def cron_entries(nights: Nights) -> str:
    """Return the lines for a crontab.

    Raises:
        BadInput: A line would be longer than cron reads.
    """
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in nights.environment.items())
    words = " ".join(map(shlex.quote, nights.command))
    folder, log = shlex.quote(str(nights.workspace.root)), shlex.quote(str(nights.log))
    command = f"cd {folder} && {variables} {words} >> {log} 2>&1".replace("%", r"\%")
    hour, minute = nights.start
    lines = [f"{minute} {hour} * * * {command}", f"@reboot {command}"]
    if max(map(len, lines)) > _LONGEST_CRON_LINE:
        raise BadInput("the entry would be longer than cron reads; use systemd, or a shorter PATH and PYTHONPATH")
    begin, end = marks(nights.workspace)
    return "\n".join([begin, *lines, end]) + "\n"


def without_entries(crontab: str, workspace: Workspace) -> str:
    """Return a crontab without the entries of a workspace, and otherwise as it was.

    Raises:
        BadInput: Its marks are not in order, so that it is not clear what is whose.
    """
    begin, end = marks(workspace)
    lines = crontab.splitlines(keepends=True)
    bare = [line.rstrip("\n") for line in lines]
    places = [at for at, line in enumerate(bare) if line in (begin, end)]
    if not places:
        return crontab
    if [bare[at] for at in places] != [begin, end]:
        raise BadInput(f"the crontab does not have {begin!r} and {end!r} once each; repair it with crontab -e")
    return "".join(lines[: places[0]] + lines[places[1] + 1 :])


def service(nights: Nights) -> str:
    """Return the systemd unit of the daemon."""
    variables = " ".join(_quoted(f"{name}={value}") for name, value in nights.environment.items())
    root, log = (str(path).replace("%", "%%") for path in (nights.workspace.root, nights.log))
    return f"""\
[Unit]
Description=autotune daemon of {root}

[Service]
Type=exec
WorkingDirectory={root}
Environment={variables}
ExecStart={" ".join(_quoted(word).replace("$", "$$") for word in nights.command)}
StandardOutput=append:{log}
StandardError=append:{log}
SuccessExitStatus={" ".join(map(str, _NO_FAILURES))}
KillMode=mixed
TimeoutStopSec={nights.stop_s:g}
"""


def timer(nights: Nights) -> str:
    """Return the systemd unit that starts the daemon at the beginning of its window."""
    root = str(nights.workspace.root).replace("%", "%%")
    return f"""\
[Unit]
Description=Nights of the autotune daemon of {root}

[Timer]
OnCalendar=*-*-* {nights.start[0]:02}:{nights.start[1]:02}:00
OnStartupSec=60
Persistent=true

[Install]
WantedBy=timers.target
"""


def _quoted(word: str) -> str:
    """Quote a word of a unit file."""
    escaped = word.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%")
    return f'"{escaped}"'
