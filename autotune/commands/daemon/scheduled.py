"""Install and uninstall what `nights.py` writes: entries in the crontab, or units of systemd for the user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast, get_args

from autotune.commands.daemon import nights
from autotune.commands.daemon.nights import Nights
from autotune.errors import BadInput, BadState, MachineProblem, disk_problem
from autotune.storage.atomic import make_folders, publish_bytes, remove
from autotune.storage.paths import Workspace
from autotune.storage.room import private_folder

System = Literal["cron", "systemd"]

_EMPTY = "no crontab for"
_PROGRAMS = {"cron": "crontab", "systemd": "systemctl"}


def entries(system: System, wanted: Nights) -> dict[str, str]:
    """Return what `install` would write, by where.

    Raises:
        BadInput: It cannot be written for this system.
    """
    if system == "cron":
        return {"crontab": nights.cron_entries(wanted)}
    folder, name = _units(), nights.unit_name(wanted.workspace)
    return {
        str(folder / f"{name}.service"): nights.service(wanted),
        str(folder / f"{name}.timer"): nights.timer(wanted),
    }


def install(system: System, wanted: Nights) -> None:
    """Have cron or systemd run the daemon. What was installed for this workspace before is replaced.

    Raises:
        BadInput: The crontab is not as autotune left it.
        MachineProblem: `crontab` or `systemctl` is missing or refused.
        DiskProblem: A file could not be written.
    """
    found = entries(system, wanted)
    _check_installed(system)
    try:
        private_folder(wanted.workspace.logs)
    except OSError as error:
        raise disk_problem("make", wanted.workspace.logs, error) from error
    if system == "cron":
        others = nights.without_entries(_crontab(), wanted.workspace)
        _write_crontab(others + ("\n" if others and not others.endswith("\n") else "") + found["crontab"])
        return
    make_folders(_units())
    for path, text in found.items():
        publish_bytes(Path(path), text.encode())
    _call(["systemctl", "--user", "daemon-reload"])
    _call(["systemctl", "--user", "enable", "--now", f"{nights.unit_name(wanted.workspace)}.timer"])


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
        after = nights.without_entries(before, workspace)
        if after == before:
            raise BadState(f"the crontab has no entries for {workspace.root.absolute()}")
        _write_crontab(after)
        return
    name = nights.unit_name(workspace)
    units = [_units() / f"{name}.timer", _units() / f"{name}.service"]
    if not any(path.exists() for path in units):
        raise BadState(f"there are no units for {workspace.root.absolute()} in {_units()}")
    _call(["systemctl", "--user", "disable", "--now", units[0].name])
    for path in units:
        remove(path)
    _call(["systemctl", "--user", "daemon-reload"])


def _check_installed(system: System) -> None:
    if shutil.which(_PROGRAMS[system]) is None:
        raise MachineProblem(
            f"{_PROGRAMS[system]} is not installed on this machine;"
            " `autotune daemon start --window 22:00-07:00` needs neither cron nor systemd"
        )


def _units() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "systemd" / "user"


def _crontab() -> str:
    """Return the crontab of this user; empty where there is none."""
    done = _run(["crontab", "-l"])
    if done.returncode and _EMPTY not in done.stderr:
        raise MachineProblem(f"crontab -l failed: {_last_line(done.stderr)}")
    return "" if done.returncode else done.stdout


def _write_crontab(text: str) -> None:
    _call(["crontab", "-"] if text else ["crontab", "-r"], text)


def _call(words: Sequence[str], given: str = "") -> None:
    done = _run(words, given)
    if done.returncode:
        raise MachineProblem(f"{' '.join(words)} failed: {_last_line(done.stderr)}")


def _run(words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
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
