"""Run, start and stop the daemon, and show its status: the commands of `autotune daemon`."""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Annotated

import typer

from autotune.commands.render import troubles
from autotune.commands.terminal import Json, say, show, tell, workspace_of
from autotune.config import Config, load_config
from autotune.errors import BadInput, printable


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Patient(logging.StreamHandler):  # type: ignore[type-arg]  # generic in newer Pythons only
    """Writes to standard error, and drops what would have to wait for the reader of a pipe.

    A full pipe would stop the daemon. How many lines were dropped is said once there is room again.
    """

    _dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not _has_room(self.stream):
            self._dropped += 1
            return
        if self._dropped:
            record.msg = f"{record.getMessage()} ({self._dropped} lines before it were dropped: nobody read them)"
            record.args = ()
            self._dropped = 0
        super().emit(record)


def _has_room(stream: IO[str]) -> bool:
    """Return whether a line can be written without waiting. A pipe that has any room has some for 4 KiB."""
    try:
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # no file of the system
        return True
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return True
    return bool(select.select([], [stream], [], 0)[1])


class _RotatingStandardError(RotatingFileHandler):
    """Goes on in an empty file when this one is full, with all that the process prints."""

    def doRollover(self) -> None:
        super().doRollover()
        if self.stream is not None:
            for descriptor in (1, 2):
                os.dup2(self.stream.fileno(), descriptor)


def log_to_standard_error(path: Path, most: int) -> None:
    """Send what the daemon logs to standard error.

    Args:
        path: The log of a daemon in the background.
        most: Its largest size in bytes. What was there before is kept as `NAME.1`.
    """
    if _is_standard_error(path):
        handler: logging.Handler = _RotatingStandardError(path, maxBytes=most, backupCount=1)
    else:
        handler = _Patient(sys.stderr)
    handler.setFormatter(_Printable("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _is_standard_error(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), os.stat(path))
    except OSError:
        return False


app = typer.Typer(
    help="Run, start and stop the daemon, which runs the queue.", no_args_is_help=True, add_completion=False
)

Drain = Annotated[bool, typer.Option("--drain", help="Exit when there is nothing left to do.")]
Until = Annotated[str, typer.Option(metavar="HH:MM", help="Exit at this time of day.")]
Policy = Annotated[str, typer.Option(help="The scheduling policy; by default as in autotune.toml.")]
Hours = Annotated[
    str,
    typer.Option("--window", metavar="HH:MM-HH:MM", help="Work in these hours only; by default as in autotune.toml."),
]


def _check(config: Config, until: str, policy: str, window: str) -> float | None:
    """Check the options.

    Returns:
        When to exit, in epoch seconds; None for no limit.

    Raises:
        BadInput: An option is wrong.
    """
    from autotune.commands.durations import parse_moment
    from autotune.planning.policies import get
    from autotune.planning.windows import parse_window

    end = parse_moment("--until", until, time.time()) if until else None
    option = "--policy"
    try:
        get(policy or config.daemon.policy)
        option = "--window"
        if window:
            parse_window(window)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from error
    return end


@app.command("run")
def run(
    context: typer.Context, drain: Drain = False, until: Until = "", policy: Policy = "", window: Hours = ""
) -> None:
    """Run the queue in the foreground. The first Ctrl-C stops it at the next safe point, the second at once."""
    from autotune.daemon.loop import Daemon

    workspace = workspace_of(context)
    config = load_config(workspace.config)
    end = _check(config, until, policy, window)
    log_to_standard_error(workspace.daemon_log, config.daemon.log_mb * 1_000_000)
    raise typer.Exit(Daemon(workspace, config, drain, end, policy, window).run())


@app.command("start")
def start(
    context: typer.Context, drain: Drain = False, until: Until = "", policy: Policy = "", window: Hours = ""
) -> None:
    """Run the queue in the background; its output goes to logs/daemon.log."""
    from autotune.commands.daemon import background

    workspace = workspace_of(context)
    _check(load_config(workspace.config), until, policy, window)
    given = {"--until": until, "--policy": policy, "--window": window}
    words = [word for option, value in given.items() if value for word in (option, value)]
    tell(f"daemon started, pid {background.start(workspace, [*words, *(['--drain'] if drain else [])])}")


@app.command("stop")
def stop(context: typer.Context) -> None:
    """Stop the daemon at its next safe point."""
    from autotune.commands.daemon import background

    workspace = workspace_of(context)
    limit = load_config(workspace.config).daemon.stop_grace_s + 10
    pid = background.stop(workspace, limit)
    tell("no daemon is running" if pid is None else f"daemon stopped, pid {pid}")


@app.command("status")
def status(context: typer.Context, as_json: Json = False) -> None:
    """Show whether a daemon serves this workspace, and what each CPU and device does. Exit code 1 if there is none."""
    from autotune.commands import render
    from autotune.commands.job_status import daemon_json
    from autotune.storage.daemon_info import running_daemon

    info = running_daemon(workspace_of(context))
    if info is None:
        tell("null" if as_json else "no daemon is running")
        raise typer.Exit(1)
    if as_json:
        tell(json.dumps(daemon_json(info)))
        return
    tell(render.daemon(info))
    show(render.resources(info)) if info.cpus else None
    for line in troubles(info):
        tell(line)


SystemName = Annotated[str, typer.Argument(metavar="cron|systemd", help="What starts the daemon.")]


@app.command("install")
def install(
    context: typer.Context,
    system: SystemName,
    window: Annotated[
        str, typer.Option(metavar="HH:MM-HH:MM", help="The hours of every day in which the daemon works.")
    ],
    write: Annotated[bool, typer.Option("--write", help="Install the entries, instead of only showing them.")] = False,
) -> None:
    """Show the entries with which cron or systemd runs the daemon every night. --write installs them."""
    from autotune.commands.daemon import nights
    from autotune.commands.daemon.nights import Nights

    workspace = workspace_of(context)
    kind = nights.check_system(system)
    wanted = Nights.of(workspace, window, load_config(workspace.config).daemon.stop_grace_s)
    for place, text in nights.entries(kind, wanted).items():
        typer.echo(f"# {place}\n{text}", nl=kind == "systemd")
    if not write:
        missing = nights.missing_program(kind)
        say(f"nothing was installed; {missing or '--write does that'}")
        return
    nights.install(kind, wanted)
    say(f"installed; autotune daemon uninstall {kind} takes it out")
    if kind == "systemd":
        say("it runs while nobody is logged in only after: loginctl enable-linger")


@app.command("uninstall")
def uninstall(context: typer.Context, system: SystemName) -> None:
    """Remove the entries that `install` wrote for this workspace. A running daemon keeps running."""
    from autotune.commands.daemon import nights

    workspace = workspace_of(context)
    kind = nights.check_system(system)
    nights.uninstall(kind, workspace)
    say(f"{kind} starts no daemon for {workspace.root} any more")
