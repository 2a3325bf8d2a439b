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
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from autotune.errors import BadInput, BadState, DaemonRunning, MachineProblem, TimedOut, disk_problem
from autotune.planning.windows import parse_window
from autotune.storage.atomic import make_folders, publish_bytes, remove
from autotune.storage.paths import Workspace
from autotune.storage.private_folders import private_folder

_TOOLS = ("ld", "gcc", "cc", "clang", "nvcc", "nvidia-smi")
_STANDARD = ("/usr/local/bin", "/usr/bin", "/bin")
# What else decides how TVM, its compilers, and the key of the user are found.
_PASSED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "XDG_STATE_HOME", "TVM_CUDA_COMPILE_MODE")
# Cron cuts longer lines off without a word.
_MAX_CRON_LINE_LENGTH = 990
_STOP_MARGIN_S = 30
# Exit codes of a daemon that found another one, that ended with its window, or that was told to stop.
_NO_FAILURES = (DaemonRunning.exit_code, TimedOut.exit_code, 128 + signal.SIGTERM)

System = Literal["cron", "systemd"]

_EMPTY = "no crontab for"
_PROGRAMS = {"cron": "crontab", "systemd": "systemctl"}


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
        if str(root) != str(root).strip() or str(root).endswith("\\"):  # systemd would read on in the next line
            raise BadInput(f"the path of the workspace, {str(root)!r}, ends with what no entry can hold; rename it")
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
    tools = [Path(tool).parent for tool in map(shutil.which, _TOOLS) if tool]
    folders = [Path(sys.executable).parent, *tools, *map(Path, _STANDARD)]
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
    folder = shlex.quote(str(nights.workspace.root))
    log = shlex.quote(str(nights.log))
    command = f"cd {folder} && {variables} {words} >> {log} 2>&1".replace("%", r"\%")
    hour, minute = nights.start
    lines = [f"{minute} {hour} * * * {command}", f"@reboot {command}"]
    if max(map(len, lines)) > _MAX_CRON_LINE_LENGTH:
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
    places = [index for index, line in enumerate(bare) if line in (begin, end)]
    if not places:
        return crontab
    if [bare[index] for index in places] != [begin, end]:
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


def entries(system: System, wanted: Nights) -> dict[str, str]:
    """Return what `install` would write, by where.

    Raises:
        BadInput: It cannot be written for this system.
    """
    if system == "cron":
        return {"crontab": cron_entries(wanted)}
    folder = _units()
    name = unit_name(wanted.workspace)
    return {str(folder / f"{name}.service"): service(wanted), str(folder / f"{name}.timer"): timer(wanted)}


def install(system: System, wanted: Nights) -> None:
    """Have cron or systemd run the daemon. What was installed for this workspace before is replaced.

    Raises:
        BadInput: The crontab is not as autotune left it.
        MachineProblem: `crontab` or `systemctl` is missing or refused.
        DiskProblem: A file could not be written.
    """
    written = entries(system, wanted)
    _check_installed(system)
    try:
        private_folder(wanted.workspace.logs)
    except OSError as error:
        raise disk_problem("make", wanted.workspace.logs, error) from error
    if system == "cron":
        others = without_entries(_crontab(), wanted.workspace)
        _write_crontab(others + ("\n" if others and not others.endswith("\n") else "") + written["crontab"])
        return
    make_folders(_units())
    for path, text in written.items():
        publish_bytes(Path(path), text.encode())
    _call(["systemctl", "--user", "daemon-reload"])
    _call(["systemctl", "--user", "enable", "--now", f"{unit_name(wanted.workspace)}.timer"])


def uninstall(system: System, workspace: Workspace) -> None:
    """Take out exactly what `install` put in for this workspace. A daemon that runs goes on.

    Raises:
        BadState: Nothing is installed.
        BadInput: The crontab is not as autotune left it.
        MachineProblem: `crontab` or `systemctl` is missing or refused.
        DiskProblem: A file could not be removed.
    """
    _check_installed(system)
    if system == "cron":
        before = _crontab()
        after = without_entries(before, workspace)
        if after == before:
            raise BadState(f"the crontab has no entries for {workspace.root.absolute()}")
        _write_crontab(after)
        return
    name = unit_name(workspace)
    units = [_units() / f"{name}.timer", _units() / f"{name}.service"]
    if not any(path.exists() for path in units):
        raise BadState(f"there are no units for {workspace.root.absolute()} in {_units()}")
    _call(["systemctl", "--user", "disable", "--now", units[0].name])
    for path in units:
        remove(path)
    _call(["systemctl", "--user", "daemon-reload"])


def _check_installed(system: System) -> None:
    if missing := missing_program(system):
        raise MachineProblem(missing)


def missing_program(system: System) -> str:
    """Return the line about the program that entries are installed with, if this machine lacks it; else nothing."""
    if shutil.which(_PROGRAMS[system]):
        return ""
    return (
        f"{_PROGRAMS[system]} is not installed on this machine;"
        " `autotune daemon start --window 22:00-07:00` needs neither cron nor systemd"
    )


def _units() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "systemd" / "user"


def _crontab() -> str:
    """Return the crontab of this user; empty where there is none."""
    done = _output(["crontab", "-l"])
    if done.returncode and _EMPTY not in done.stderr:
        raise MachineProblem(f"crontab -l failed: {_last_line(done.stderr)}")
    return "" if done.returncode else done.stdout


def _write_crontab(text: str) -> None:
    _call(["crontab", "-"] if text else ["crontab", "-r"], text)


def _call(words: Sequence[str], given: str = "") -> None:
    done = _output(words, given)
    if done.returncode:
        raise MachineProblem(f"{' '.join(words)} failed: {_last_line(done.stderr)}")


def _output(words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(list(words), input=os.fsencode(given), capture_output=True, env=environment, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def check_system(word: str) -> System:
    """Return the word as the name of a system.

    Raises:
        BadInput: It is none.
    """
    if word in get_args(System):
        return cast(System, word)
    raise BadInput(f"{word!r}: give cron or systemd")
