"""The command line: the table of verbs, the options that all of them share, and how errors become exit codes.

Each verb is one file in `commands/`, which is imported when the verb is used: `--help` reads the table only.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from autotune.commands.arguments import hoist_workspace
from autotune.commands.terminal import say
from autotune.errors import AutotuneError, one_line
from autotune.storage.paths import Workspace


class Verb(NamedTuple):
    """Where a verb is: a module below `autotune.commands`, its function or Typer app, and its line in `--help`."""

    module: str
    name: str
    help: str


VERBS = {
    "submit": Verb("submit", "command", "Read a model, extract its tuning tasks and put a job into the queue."),
    "status": Verb("status", "command", "Show what runs, how far it is, and why each waiting job waits."),
    "logs": Verb("logs", "command", "Print what happened to a job, stage by stage."),
    "cancel": Verb("control", "cancel", "End jobs for good; their trials stay known."),
    "hold": Verb("control", "hold", "Start no more stages of jobs until they are released."),
    "release": Verb("control", "release", "Let held jobs go on."),
    "retry": Verb("control", "retry", "Start failed or cancelled jobs again, from the trials they have."),
    "wait": Verb("wait", "command", "Block until jobs have ended."),
    "export": Verb(
        "export",
        "command",
        "Hand over the best so far as a verified library.",
    ),
    "report": Verb("report.command", "command", "Say what came of jobs and where their time went."),
    "clean": Verb("clean", "command", "Remove jobs that have ended."),
    "sweep": Verb("sweep", "command", "Tune models in all combinations of ways, and compare them."),
    "trials": Verb("trials", "app", "Take trials from one workspace, host or version of TVM to another."),
    "simulate": Verb(
        "simulate",
        "command",
        "Play jobs on a described machine under scheduling policies.",
    ),
    "doctor": Verb("doctor", "command", "Say what this machine has, and what would go wrong."),
    "check": Verb(
        "check",
        "command",
        "Verify that nothing in the workspace is lost, doubled or stuck.",
    ),
    "selftest": Verb(
        "selftest.selftest",
        "command",
        "Kill queues on this disk at every durable step, and see that nothing is lost.",
    ),
    "daemon": Verb("daemon", "app", "The process that runs the queue."),
}


class _Verbs(TyperGroup):
    """The verbs as a group of commands that are loaded when they are used."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return TyperCommand(cmd_name, help=VERBS[cmd_name].help) if self._listing else _load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _load(name: str) -> Any:
    """The command of a verb, with its module imported."""
    verb = VERBS[name]
    found = getattr(import_module(f"autotune.commands.{verb.module}"), verb.name)
    if isinstance(found, typer.Typer):
        group: Any = typer.main.get_command(found)
        group.name = name
        return group
    single = typer.Typer(add_completion=False)
    single.command(name, help=None if found.__doc__ else verb.help)(found)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=_Verbs,
    help="Tune neural networks for the hardware they run on: submit models, run the daemon, export libraries.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from autotune.version import __version__

        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    workspace: Annotated[
        Path, typer.Option(envvar="AUTOTUNE_WORKSPACE", help="The folder with jobs/, logs/ and autotune.toml.")
    ] = Path(),
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    context.obj = Workspace(workspace)


def _usage(error: Any, command: str) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.format_message())
    else:
        say(f"autotune: {error.format_message()} (see {command} --help)")
    return 2


def _run(words: list[str]) -> int:
    """The exit code of a command line; every error that is ours or the user's is one line on standard error."""
    # Typer brings click along in some versions and depends on it in others; its classes are found either way.
    usage_error, click_exception = cast(Any, typer.BadParameter.__mro__[1:3])
    try:
        code = app(words, prog_name="autotune", standalone_mode=False)
    except click_exception as error:
        return _usage(error, error.ctx.command_path if isinstance(error, usage_error) and error.ctx else "autotune")
    except AutotuneError as error:
        say(f"autotune: {one_line(error)}")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"autotune: {error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line."""
    try:
        code = _run(hoist_workspace(sys.argv[1:]))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone; so shall we, silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code)
